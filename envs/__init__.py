"""Environments that ship as examples; user code, importing only public names of rollart_hpc."""
