"""The data plane: one OpenAI-compatible address in front of many engines.

What is this room? The data plane: one OpenAI-compatible address in front of many engines.
What comes in? The route table, tokens, bytes of clients.
What goes out? Bytes of engines, metrics, a ledger.
Who may import me? lab, cli.
"""
