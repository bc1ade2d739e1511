"""The verbs: one typed function for each thing that Etude does.

`etude.<verb>` is the function here, and the command `etude <verb>` is made from its signature and docstring
(`cli/adapter.py`): positional parameters are the words of a command line, keyword-only ones its options, `settings` the
words `group.name=value`, the section `Args` the help. Functions that receive progress (`on_...`) are for Python alone.

Nothing heavy is imported at the top of these modules, so that `import etude` and `etude --help` stay fast.
"""
