"""The default of norewind, single methods, and other forecasters and compressors on eight real streams."""
