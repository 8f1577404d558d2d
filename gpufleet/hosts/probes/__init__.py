"""One file a question to a host.

What is this room? One file a question to a host.
What comes in? Text that a tool printed.
What goes out? Known values, or Unknown with the reason.
Who may import me? hosts.
"""
