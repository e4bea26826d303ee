"""The command ``tessera``: one file a noun, no rules of its own. Every command calls what the Python face
calls."""


def main() -> None:
    """Run the command line of this process and exit with its status."""
    from tessera.doors.cli.tree import tree

    tree.main(prog_name="tessera")
