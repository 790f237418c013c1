"""The runtime: what an emitted program calls, and the training services around it.

The whole folder travels inside every emitted program and is imported there as `runtime`, so it
imports itself relatively and nothing beyond torch, numpy, safetensors and the standard library.
"""
