# Runs in the sandbox: /build/src is the unpacked wheel, /build/out is to hold the model.
# One thread, and none of torch's code for certain processors: the same bytes everywhere.
export OMP_NUM_THREADS=1 ATEN_CPU_CAPABILITY=default HF_HUB_OFFLINE=1
exec python3.11 /build/recipe/make.py /build/src /build/out
