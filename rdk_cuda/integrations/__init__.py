"""Adapters to other libraries: Hugging Face models for the decoder, serving engines' layouts."""
