"""Bytes and dialects, no sockets.

What is this room? Bytes and dialects, no sockets.
What comes in? Bytes.
What goes out? Events, or a protocol error.
Who may import me? proxy.
"""
