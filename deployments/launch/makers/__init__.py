"""What Helm charts and controllers make pods of: values and custom resources, to the pods that they become.

Nothing is rendered. Each module writes down what one chart or controller does with what the file says; what depends on
more than the file stays unknown with the reason.
"""
