"""One module per question: its docstring asks it, ``TITLE`` heads its results, ``run`` measures."""
