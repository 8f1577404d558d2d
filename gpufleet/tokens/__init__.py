"""Who may call: mint, hash, scope and expire bearer tokens.

What is this room? Who may call: mint, hash, scope and expire bearer tokens.
What comes in? A principal and its scope.
What goes out? A token that is shown once, and the principal behind a token.
Who may import me? deploy, proxy, lab, cli.
"""
