"""Adapters that put other libraries' models behind `rdk_cuda.decoding.CausalModel`."""
