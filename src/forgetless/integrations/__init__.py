"""FPF and k-FPF inside other libraries' training loops, one file a library: lightning, huggingface, avalanche.

Each hands an ``FPF`` of yours the batches of its library's loop; nothing of a library is imported before its file is.
"""
