"""What the SQL stores share: rows of a job, and a world loaded from a database for the one evaluator."""
