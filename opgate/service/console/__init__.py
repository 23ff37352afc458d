"""The console: a page in the browser that shows the gateway and tries its models."""
