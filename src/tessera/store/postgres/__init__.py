"""The PostgreSQL store, on psycopg 3 in both colours."""
