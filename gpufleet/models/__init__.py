"""Models as files describe them: the catalogue, what a config.json says of memory, and what weights weigh.

What is this room? The models that can be served, and what their own files say about them.
What comes in? Catalogue files, a config.json, the headers of safetensors files.
What goes out? Catalogue entries, an Architecture by kind of layer, and the weights by type and use.
Who may import me? engine, deploy, cli.
"""
