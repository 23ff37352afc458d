"""`opgate attach`: a plain ONNX network becomes a served model that takes pictures and answers with labels."""
