"""FPF and k-FPF inside other libraries' training loops: one file per library, imported only when you import it."""
