"""The analyses as tools of a server of the Model Context Protocol (MCP).

``tools`` defines a tool per analysis, ``roots`` the files that tools may read, ``answers`` returns
bounded pages of results and is the process that executes tools; ``protocol`` serves them on stdio.
"""
