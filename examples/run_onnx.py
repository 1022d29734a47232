"""Act with an exported policy, without the library that trained it:

python run_onnx.py export/policy.onnx observations.npy"""

import sys

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1])
obs = np.load(sys.argv[2]).astype(np.float32)  # [N, S], raw, in the order that card.md gives
names = [output.name for output in session.get_outputs()]
result = dict(zip(names, session.run(names, {"obs": obs}), strict=True))
for row, action in enumerate(result["action"]):
    score = result["out_of_data"][row] if "out_of_data" in result else float("nan")
    note = "" if score <= 1 or "out_of_data" not in result else "  outside the data"
    print(f"{np.round(action, 4)}  out_of_data {score:.2f}{note}")
