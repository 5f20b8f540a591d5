"""WebShop: search, choose and buy on the pages of a shop."""

from rollart_hpc.envs.webshop.webshop import LargeWebShop, WebShop

__all__ = ["LargeWebShop", "WebShop"]
