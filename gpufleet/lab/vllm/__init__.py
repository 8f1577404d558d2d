"""What a vLLM server says and does, as values: command line, start-up log, words, metrics page.

What is this room? What a vLLM server says and does, as values: command line, start-up log, words, metrics page.
What comes in? An argument vector, an environment, requests as JSON, and the time.
What goes out? Specifications, log lines, tokens and Prometheus text; no sockets and no clock.
Who may import me? lab.
"""
