"""Builds the C++ extension and the library of selected networks. All else is in pyproject.toml.

The extension uses PyTorch's stable ABI: it needs torch's headers and library to be built, but not
torch itself to run, so the build works with and without pip's build isolation, and one build serves
every Python from 3.11 and every torch from the version below. Where it cannot be built, the package
still installs and computes with plain PyTorch.

The library of selected networks (``fastlbbnn/_sparse.so``, sources in csrc/sparse) needs neither
torch nor Python's headers: it is loaded with ctypes, also where torch is absent.

The CUDA kernels of selected networks (``fastlbbnn/_sparse_cuda.so``, sources in csrc/cuda) are built
by nvcc where torch has CUDA, and elsewhere with FASTLBBNN_CUDA=1; FASTLBBNN_CUDA=0 leaves them out.
FASTLBBNN_CUDA_ARCHITECTURES lists the compute capabilities, by default those of "80;86;89;90;100;120" that
this nvcc knows.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent

#: The oldest torch whose stable ABI the sources use: 2.13.
TORCH_TARGET = "0x020d000000000000"

SOURCES = ["csrc/register.cpp", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("csrc/cpu/*.cpp"))]
SPARSE_SOURCES = sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("csrc/sparse/*.cpp"))
HEADERS = sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("csrc/**/*.h"))

COMPILE_FLAGS = [
    "-std=c++17",
    "-O3",
    "-fvisibility=hidden",
    # The noise must round every operation on its own: see csrc/common/noise.h.
    "-ffp-contract=off",
    # GCC's AVX-512 intrinsics read a deliberately uninitialised register.
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
    "-Wno-psabi",
]

#: Names of the libraries of selected networks, as extension modules that nobody imports.
SPARSE = "fastlbbnn._sparse"
SPARSE_CUDA = "fastlbbnn._sparse_cuda"

CUDA_SOURCES = sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("csrc/cuda/*.cu"))
CUDA_HEADERS = sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("csrc/cuda/*.*h"))
CUDA_FLAGS = ["-std=c++17", "-O3", "-Xcompiler", "-fPIC,-fvisibility=hidden", "-cudart", "static"]


def torch_directory() -> Path | None:
    """Where torch is installed: in the build environment, or in the one that is installed into."""
    candidates = [os.environ.get("FASTLBBNN_TORCH_DIR")]
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.submodule_search_locations:
        candidates.append(spec.submodule_search_locations[0])
    # pip's isolation hides site-packages from sys.path, but not from us.
    candidates += [str(Path(sysconfig.get_path(p)) / "torch") for p in ("purelib", "platlib")]
    for candidate in candidates:
        if candidate and (Path(candidate) / "include/torch/csrc/stable/library.h").exists():
            return Path(candidate)
    return None


def wants_cuda() -> bool:
    asked = os.environ.get("FASTLBBNN_CUDA")
    if asked is not None:
        return asked == "1"
    # Read, not imported: under pip's isolation torch cannot be.
    version = (torch_directory() or Path()) / "version.py"
    return version.exists() and bool(re.search(r"^cuda\b.*=\s*['\"]", version.read_text(), re.M))


def find_nvcc() -> str | None:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    candidates = [os.environ.get("CUDACXX"), "nvcc", *(f"{h}/bin/nvcc" for h in homes if h)]
    return next((found for c in candidates if c and (found := shutil.which(c))), None)


#: A100; RTX 30; RTX 40 and L4; H100; B200; RTX 50.
CUDA_ARCHITECTURES = "80;86;89;90;100;120"


def nvcc_architectures(nvcc: str) -> set[str] | None:
    """Compute capabilities that this nvcc compiles for; None where it does not tell."""
    try:
        told = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return set(re.findall(r"compute_(\d+)", told.stdout)) or None


def cuda_architectures(nvcc: str) -> list[str]:
    """nvcc's flags: machine code for each, and portable code of the oldest for all newer ones.

    Of the default ones, those that an older nvcc does not know are left out, and run the portable code.
    """
    asked = os.environ.get("FASTLBBNN_CUDA_ARCHITECTURES")
    names = re.findall(r"\d+[af]?", CUDA_ARCHITECTURES if asked is None else asked)
    if not names:
        raise ValueError('FASTLBBNN_CUDA_ARCHITECTURES lists none; expected numbers such as "80;90"')
    known = nvcc_architectures(nvcc)
    unknown = [n for n in names if known is not None and re.sub(r"\D", "", n) not in known]
    names = [n for n in names if n not in unknown]
    if unknown and (asked is not None or not names):
        raise ValueError(
            f"{nvcc} does not compile for {', '.join(unknown)}: install a newer CUDA toolkit, or list in "
            f"FASTLBBNN_CUDA_ARCHITECTURES what it knows ({', '.join(sorted(known or (), key=int))})"
        )
    if unknown:
        print(
            f"fastlbbnn: this nvcc does not compile for {', '.join(unknown)}; such GPUs compile the portable "
            "code when they first load it",
            file=sys.stderr, flush=True,
        )  # fmt: skip
    flags = [f"-gencode=arch=compute_{n},code=sm_{n}" for n in names]
    oldest = min(names, key=lambda n: int(re.sub(r"\D", "", n)))
    return [*flags, f"-gencode=arch=compute_{oldest},code=compute_{oldest}"]


WITHOUT = {
    "fastlbbnn._C": "the C++ extension was NOT built: {} The package works without it, through the "
    "reference backend, many times slower. `python -m fastlbbnn info` shows the state.",
    SPARSE: "the library of selected networks was NOT built: {} Selected networks still predict with "
    "PyTorch, as dense ones; fastlbbnn.sparse.runtime needs the library.",
    SPARSE_CUDA: "the CUDA kernels of selected networks were NOT built: {} All else works without "
    "them.",
}


def warn(name: str, reason: str) -> None:
    text = textwrap.fill("fastlbbnn: " + WITHOUT[name].format(reason), width=88)
    line = "*" * 88
    print(f"\n{line}\n{text}\n{line}\n", file=sys.stderr, flush=True)


class OptionalBuild(build_ext):
    """Compiles in parallel, and turns a failure into a loud warning."""

    def get_ext_filename(self, fullname: str) -> str:
        # Not a Python module, so without Python's suffix.
        if fullname.endswith(("_sparse", "_sparse_cuda")):
            return os.path.join(*fullname.split(".")) + ".so"
        return super().get_ext_filename(fullname)

    def give_up(self, ext: Extension, reason: str) -> None:
        """Say so now, which pip hides, and where `fastlbbnn info` finds it later."""
        warn(ext.name, reason)
        note = self.note_of(ext)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(" ".join(reason.split()) + "\n", encoding="utf-8")

    def note_of(self, ext: Extension) -> Path:
        stem = ext.name.rpartition(".")[2]
        return Path(self.get_ext_fullpath(ext.name)).with_name(f"{stem}.not-built.txt")

    def build_extension(self, ext: Extension) -> None:
        self.note_of(ext).unlink(missing_ok=True)
        if os.environ.get("FASTLBBNN_NO_EXTENSION") == "1":
            self.give_up(ext, "FASTLBBNN_NO_EXTENSION=1 is set.")
            return
        if ext.name == SPARSE_CUDA:
            self.build_cuda(ext)
            return
        ext.extra_compile_args = list(COMPILE_FLAGS)
        if ext.name != SPARSE:
            torch = torch_directory()
            if torch is None:
                self.give_up(ext, "torch was not found. Install it first: pip install torch==2.13.0.")
                return
            ext.extra_compile_args += [
                f"-DTORCH_TARGET_VERSION={TORCH_TARGET}", "-isystem", str(torch / "include"),
            ]
            ext.library_dirs = [str(torch / "lib")]
        try:
            self.compile_in_parallel(ext)
            super().build_extension(ext)
        except Exception as error:  # whatever the compiler does wrong, the install goes on
            self.give_up(
                ext, f"{type(error).__name__}: {error}. Is there a C++17 compiler (g++ 9 or newer)?"
            )

    def build_cuda(self, ext: Extension) -> None:
        """Compile and link with nvcc alone."""
        nvcc = find_nvcc()
        if nvcc is None:
            self.give_up(ext, "nvcc was not found. Install the CUDA toolkit, or set CUDA_HOME.")
            return
        target, objects = Path(self.get_ext_fullpath(ext.name)), Path(self.build_temp) / "csrc/cuda"
        newest = max((ROOT / p).stat().st_mtime for p in ext.depends)
        if target.exists() and not self.force and target.stat().st_mtime > newest:
            return
        objects.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)

        def compile_one(source: str) -> str:
            obj = str(objects / (Path(source).stem + ".o"))
            subprocess.run([nvcc, *flags, "-c", str(ROOT / source), "-o", obj], check=True)
            return obj

        try:
            flags = [*CUDA_FLAGS, *cuda_architectures(nvcc)]
            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                compiled = list(pool.map(compile_one, ext.sources))
            subprocess.run([nvcc, "-shared", *CUDA_FLAGS, *compiled, "-o", str(target)], check=True)
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            self.give_up(ext, f"{type(error).__name__}: {error}.")

    def compile_in_parallel(self, ext: Extension) -> None:
        """Compile each source in a thread of its own; setuptools then finds and links the objects."""
        compiler, jobs = self.compiler, os.cpu_count() or 1

        def compile_one(source: str) -> list[str]:
            return compiler.compile(
                [source],
                output_dir=self.build_temp,
                extra_postargs=ext.extra_compile_args,
                depends=[source, *HEADERS],
            )

        with ThreadPoolExecutor(jobs) as pool:
            ext.extra_objects = [o for objects in pool.map(compile_one, ext.sources) for o in objects]
        ext.sources = []


class StableWheel(bdist_wheel):
    """The extension has no Python ABI of its own: one wheel for 3.11 and later."""

    def finalize_options(self) -> None:
        self.py_limited_api = "cp311"
        super().finalize_options()


setup(
    ext_modules=[
        Extension(
            "fastlbbnn._C",
            SOURCES,
            depends=[*SOURCES, *HEADERS],
            libraries=["torch_cpu"],
            extra_link_args=["-Wl,--no-as-needed"],
            language="c++",
            py_limited_api=True,
        ),
        Extension(
            SPARSE,
            SPARSE_SOURCES,
            depends=[*SPARSE_SOURCES, *HEADERS],
            extra_link_args=["-pthread"],
            language="c++",
        ),
        *(
            [
                Extension(
                    SPARSE_CUDA, CUDA_SOURCES, depends=[*CUDA_SOURCES, *CUDA_HEADERS], optional=True
                )
            ]
            if wants_cuda()
            else []
        ),
    ],
    cmdclass={"build_ext": OptionalBuild, "bdist_wheel": StableWheel},
)
