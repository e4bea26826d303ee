"""``python -m tessera`` is the command ``tessera``."""

from tessera.doors.cli import main

if __name__ == "__main__":
    main()
