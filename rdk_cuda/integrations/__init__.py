"""Other libraries: their models and `generate`, token maps, and serving engines' layouts."""
