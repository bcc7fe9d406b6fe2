import sys

from setuptools import setup

sys.path.insert(0, "native")  # builds that are isolated have no folder of the project on their path
from parallel_build import ParallelBuild

# Not in setup.cfg: cffi adds its own command to this class before that is read, which is then passed over in silence.
setup(cffi_modules=["native/build_native.py:ffi"], cmdclass={"build_ext": ParallelBuild})
