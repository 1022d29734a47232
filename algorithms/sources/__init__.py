"""Sources of batches: logged and replayed rows, imagined rows, generated windows, histories."""
