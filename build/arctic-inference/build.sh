# Runs in the sandbox, in /build/src: the unpacked sdist. Leaves a wheel in /build/out.
#
# The CUDA operations (ARCTIC_INFERENCE_PRECOMPILED_OPS) are not built: vLLM's suffix
# decoding does not use them. Without them setup.py wants torch for one thing only, a
# path that it hands to CMake and that csrc/suffix_decoding never reads. So it gets a
# torch that has that attribute and no other, and the wheel is the same for all pins.
mkdir /build/stub
cat > /build/stub/torch.py <<'PYTHON'
"""Stands in for torch while setup.py runs; any other attribute is an error."""
import types

utils = types.SimpleNamespace(cmake_prefix_path="")
PYTHON
export PYTHONPATH=/build/stub

# No -march: the code has to run on every x86-64 machine.
export CMAKE_GENERATOR=Ninja CMAKE_MAKE_PROGRAM=/usr/bin/ninja
export CXXFLAGS="-ffile-prefix-map=/build/src=." LDFLAGS="-Wl,--build-id=none"

exec python3.11 -c '
from setuptools import build_meta
build_meta.build_wheel("/build/out")
'
