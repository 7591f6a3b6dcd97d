"""Messages on the command line: which are chosen, how they look, and ``tail``."""
