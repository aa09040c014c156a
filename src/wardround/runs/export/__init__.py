"""A run's model as a folder that people can take home and use: named weights, ONNX, preprocessing, schema and card."""
