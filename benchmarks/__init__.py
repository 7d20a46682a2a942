"""Our own speed and quality, beside llama.cpp's and others'."""
