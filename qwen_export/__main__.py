"""`python -m qwen_export`: the same as `qwen-export`."""

from qwen_export.cli import main

if __name__ == "__main__":
    main()
