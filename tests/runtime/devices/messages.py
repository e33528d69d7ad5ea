"""What jax says of backends that do not start, as libtpu and XLA word it."""

VFIO_BUSY = (
    "Unable to initialize backend 'tpu': FAILED_PRECONDITION: TPU initialization failed: open(/dev/vfio/0): Device or "
    "resource busy: Device or resource busy; Couldn't open iommu group /dev/vfio/0 (set JAX_PLATFORMS='' to "
    "automatically choose an available backend)"
)
LIBTPU_IN_USE = (
    "Unable to initialize backend 'tpu': ABORTED: The TPU is already in use by process with pid 176028. Not attempting "
    "to load libtpu.so in this process."
)
LIBTPU_OTHER_USER = (
    "Unable to initialize backend 'tpu': ABORTED: The TPU is already in use by another process probably owned by "
    'another user. Run "$ sudo lsof -w /dev/vfio/0" to figure out which process is using the TPU. If you still get '
    'this message, run "$ sudo rm /tmp/libtpu_lockfile".'
)
LIBTPU_LOCKED = (
    "Unable to initialize backend 'tpu': ABORTED: Internal error when accessing libtpu multi-process lockfile. Run "
    '"$ sudo rm /tmp/libtpu_lockfile".'
)
LIBTPU_OLD = "Unable to initialize backend 'tpu': libtpu.so already in use by another process"
CUDA_NO_MEMORY = (
    "Unable to initialize backend 'cuda': INTERNAL: CUDA error: Failed call to cuInit: CUDA_ERROR_OUT_OF_MEMORY: out "
    "of memory"
)
CUDA_NO_CONTEXT = (
    "Unable to initialize backend 'cuda': INTERNAL: failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY: "
    "out of memory; total memory reported: 34089730048"
)
CUDA_EXCLUSIVE = (
    "Unable to initialize backend 'cuda': INTERNAL: CUDA error: CUDA_ERROR_DEVICE_UNAVAILABLE: CUDA-capable device(s) "
    "is/are busy or unavailable"
)

TAKEN = (
    *(VFIO_BUSY, LIBTPU_IN_USE, LIBTPU_OTHER_USER, LIBTPU_LOCKED, LIBTPU_OLD),
    *(CUDA_NO_MEMORY, CUDA_NO_CONTEXT, CUDA_EXCLUSIVE),
)
NOT_TAKEN = (
    "Unable to initialize backend 'tpu': UNKNOWN: TPU initialization failed: No ba16c7433 device found",
    "Unable to initialize backend 'cuda': FAILED_PRECONDITION: No visible GPU devices.",
    "Unable to initialize backend 'cuda': INTERNAL: CUDA error: Failed call to cuInit: CUDA_ERROR_NO_DEVICE",
    "Unable to initialize backend 'tpu': UNAVAILABLE: listen tcp 0.0.0.0:8471: bind: Address already in use",
    "Failed to open libtpu.so: libtpu.so",
)
