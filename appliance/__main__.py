"""``python -m appliance`` is ``appliance``."""

from .cli import main

if __name__ == "__main__":
    main()
