"""Kernels, operators and calls as PyTorch, cuBLAS, NCCL and vLLM name them on Hopper GPUs."""

_BF16 = "c10::BFloat16"
_VECTOR = "at::native::vectorized_elementwise_kernel"
_ARRAY3 = "std::array<char*, 3ul>"
_ARRAY2 = "std::array<char*, 2ul>"
_MULTI = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel"

GEMM = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment"
    "_k_off_kernel__5x_cublas"
)
GEMM_NN = GEMM.replace("_tn_n_", "_nn_n_")
GEMM_NT = GEMM.replace("_tn_n_", "_nt_n_")
_SIMT = "cutlass_80_simt_sgemm_256x128_8x4_tn_align1"
SGEMM = f"void cutlass::Kernel2<{_SIMT}>({_SIMT}::Params)"
BMM = GEMM.replace("tilesize128x128x64", "tilesize64x128x64")
FLASH = (
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64, 4, "
    "false, false, cutlass::bfloat16_t, pytorch_flash::Flash_kernel_traits<128, 128, 64, 4, "
    "cutlass::bfloat16_t> >, false, true, false, false, true, true, false, false>"
    "(pytorch_flash::Flash_fwd_params)"
)
FLASH_BACKWARD = (
    "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<pytorch_flash::"
    "Flash_bwd_kernel_traits<128, 64, 128, 8, 2, 4, 2, false, false, cutlass::bfloat16_t, "
    "pytorch_flash::Flash_kernel_traits<128, 64, 128, 8, cutlass::bfloat16_t> >, false, true, "
    "false, false, true, true, false>(pytorch_flash::Flash_bwd_params)"
)
NORM = (
    f"void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<{_BF16}, float>"
    f"(int, float, {_BF16} const*, {_BF16} const*, {_BF16} const*, float*, float*, {_BF16}*)"
)
NORM_BACKWARD = (
    f"void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<{_BF16}, "
    f"float>({_BF16} const*, {_BF16} const*, float const*, float const*, {_BF16} const*, "
    f"{_BF16}*, int)"
)
_SUM = f"at::native::CUDAFunctor_add<{_BF16}>"
ADD = f"void {_VECTOR}<4, {_SUM}, {_ARRAY3} >(int, {_SUM}, {_ARRAY3})"
MUL = (
    f"void {_VECTOR}<4, at::native::BinaryFunctor<{_BF16}, {_BF16}, {_BF16}, at::native::"
    f"binary_internal::MulFunctor<float> >, {_ARRAY3} >(int, at::native::BinaryFunctor<{_BF16}, "
    f"{_BF16}, {_BF16}, at::native::binary_internal::MulFunctor<float> >, {_ARRAY3})"
)
_GELU = (
    "at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{lambda()#2}::"
    "operator()() const::{lambda()#4}::operator()() const::{lambda(c10::BFloat16)#1}"
)
GELU = f"void {_VECTOR}<4, {_GELU}, {_ARRAY2} >(int, {_GELU}, {_ARRAY2})"
_GELU_BACKWARD = _GELU.replace("GeluCUDAKernelImpl", "GeluBackwardCUDAKernelImpl")
GELU_BACKWARD = f"void {_VECTOR}<4, {_GELU_BACKWARD}, {_ARRAY3} >(int, {_GELU_BACKWARD}, {_ARRAY3})"
COPY = (
    f"void {_VECTOR}<4, at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::"
    f"{{lambda(float)#1}}, {_ARRAY2} >(int, at::native::bfloat16_copy_kernel_cuda("
    f"at::TensorIteratorBase&)::{{lambda(float)#1}}, {_ARRAY2})"
)
SOFTMAX = (
    f"void (anonymous namespace)::softmax_warp_forward<{_BF16}, {_BF16}, float, 11, false, false>"
    f"({_BF16}*, {_BF16} const*, int, int, int, bool const*, int, bool)"
)
SOFTMAX_BACKWARD = (
    f"void (anonymous namespace)::softmax_warp_backward<{_BF16}, {_BF16}, float, 11, false, false>"
    f"({_BF16}*, {_BF16} const*, {_BF16} const*, int, int, int, bool const*)"
)
LOG_SOFTMAX = (
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float, at::native"
    "::(anonymous namespace)::LogSoftMaxForwardEpilogue>(float*, float const*, int)"
)
LOG_SOFTMAX_BACKWARD = LOG_SOFTMAX.replace("Forward", "Backward")
NLL = (
    "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, "
    "long>(float*, float*, float const*, long const*, float const*, bool, long, long, long, long)"
)
EMBEDDING = (
    f"void at::native::(anonymous namespace)::indexSelectLargeIndex<{_BF16}, long, unsigned int, 2,"
    f" 2, -2, true>(at::cuda::detail::TensorInfo<{_BF16}, unsigned int>)"
)
REDUCE = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t"
    "<float, at::native::sum_functor<float, float, float>::operator()(at::TensorIterator&)::"
    "{lambda(float, float)#1}>, unsigned int, float, 4> >(at::native::ReduceOp<float>)"
)
_FILLED = "at::native::FillFunctor<int>, std::array<char*, 1ul>"
FILL = f"void {_VECTOR}<4, {_FILLED} >(int, {_FILLED})"
ADAM = (
    f"{_MULTI}<at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>, at::native::"
    "(anonymous namespace)::FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false> >"
    "(at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>)"
)
INDEX_BACKWARD = (
    "void at::native::(anonymous namespace)::indexing_backward_kernel_stride_1<c10::BFloat16>"
    "(long const*, long const*, c10::BFloat16 const*, c10::BFloat16*, long, long, long, long, bool)"
)
NONZERO = (
    "void at_cuda_detail::cub::DeviceSelectSweepKernel<at_cuda_detail::cub::DispatchSelectIf<"
    "at_cuda_detail::cub::CountingInputIterator<long, long>, bool*, long*, int*, at_cuda_detail::"
    "cub::NullType, at_cuda_detail::cub::NullType, int, false> >(long, bool*, long*, int*)"
)
NCCL_ARGS = "(ncclDevKernelArgsStorage<4096ul>)"
ALL_REDUCE = f"ncclDevKernel_AllReduce_Sum_bf16_RING_LL{NCCL_ARGS}"
BROADCAST = f"ncclDevKernel_Broadcast_RING_LL{NCCL_ARGS}"
ALL_GATHER = f"ncclDevKernel_AllGather_RING_LL{NCCL_ARGS}"
CTC = "void at::native::(anonymous namespace)::ctc_loss_{}_gpu_kernel<float, long>(float*, long)"
CAT = (
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>()"
)
REDUCE_SCATTER = f"ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL{NCCL_ARGS}"
SEND_RECV = f"ncclDevKernel_SendRecv{NCCL_ARGS}"
TRITON = "triton_poi_fused_add_gelu_mul_{}"
TRITON_REDUCTION = "triton_red_fused_native_layer_norm_{}"

LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
LOADER_IN_PROCESS = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"

#: Python frames of a training script and of the libraries that it calls.
TRAIN = "train.py(212): <module>"
MAIN = "train.py(188): main"
TRAIN_STEP = "train.py(121): train_step"
BACKWARD = "torch/autograd/__init__.py(243): backward"
RUN_BACKWARD = "<built-in method run_backward of torch._C._EngineBase object at 0x7f1de4620820>"
OPTIMIZER = "torch/optim/optimizer.py(465): wrapper"
CALL = "torch/nn/modules/module.py(1747): _call_impl"
LOADER_NEXT = "torch/utils/data/dataloader.py(708): __next__"
LOADER_GET = "torch/utils/data/dataloader.py(1398): _get_data"
LOADER_QUEUE = "multiprocessing/queues.py(122): get"
LOADER_FETCH = "torch/utils/data/_utils/fetch.py(51): fetch"
GET_ITEM = "dataset.py(58): __getitem__"
#: Kernels that run where faster ones do not take the input: node, name, and what names them.
FALLBACKS = (
    (
        "ConvolutionBackward0",
        (
            "void at::native::(anonymous namespace)::conv_depthwise2d_grad_weight_kernel<float, "
            "float, int>(at::GenericPackedTensorAccessor<float const, 4ul, int>, int)"
        ),
        r"conv_depthwise2d_grad_weight.*ConvolutionBackward0",
    ),
    (
        "NativeBatchNormBackward0",
        (
            "void at::native::batch_norm_backward_reduce_kernel<c10::BFloat16, float, float, int>"
            "(at::GenericPackedTensorAccessor<c10::BFloat16 const, 3ul, at::DefaultPtrTraits, int>)"
        ),
        r"batch_norm_backward_reduce.*NativeBatchNormBackward0",
    ),
    (
        "ScaledDotProductEfficientAttentionBackward0",
        (
            "fmha_cutlassB_f32_aligned_64x64_k64_sm80(PyTorchMemEffAttention::AttentionBackwardKernel"
            "<cutlass::arch::Sm80, float, true, false, false, 64, 64, 64, false>::Params)"
        ),
        r"attention in float32.*ScaledDotProductEfficientAttentionBackward0",
    ),
)
