"""The ``aegaeon`` command, one file per subcommand.

It stands above all other packages: a subcommand may import those that it needs, when it runs.
"""
