# Runs in the sandbox: /build/src is the unpacked wheel, /build/out is to hold the model.
exec python3.11 /build/recipe/convert.py /build/src /build/out
