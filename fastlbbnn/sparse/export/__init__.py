"""Selected networks for elsewhere: C source and ONNX."""
