"""Kernel names: families and short names of real library kernels."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, strategies as st

from traceanalyzer.analyzers.common.kernel_names import (
    KERNEL_FAMILIES,
    double,
    families_of,
    family,
    function,
    plain_float,
    short_names,
    unaligned,
)

#: As profilers wrote them on NVIDIA and AMD, shortened.
FAMILIES = {
    "gemm": [
        "volta_sgemm_128x64_nt",
        "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(Params)",
        "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4>(Params)",
        "nvjet_tst_192x8_64x8_4x1_v_bz_TNT",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_execute_kernel__5x_cublas",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, float>(cublasSplitKParams<float>)",
        "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float>(int)",
        "void gemv2T_kernel_val<int, int, float, float, float>(cublasGemvParams<float>)",
        "void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensor<float> > >(float)",
        "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_swiGlu_sm100f",
        "Cijk_Ailk_Bjlk_BBS_BH_Bias_HAS_SAV_UserArgs_MT64x32x64_MI16x16x1_SN_LDSB0_AFC1",
        "void magma_sgemmEx_kernel<float, float, float, true, false, 6, 4>(int, int, int, Tensor)",
        "void epilogue::impl::globalKernel<float, float, float, true>(int, cublasLtEpilogue_t)",
        "triton_tem_fused_addmm_relu_3",
        "triton_tem_fused_mm_t_5",
        "void marlin::Marlin<c10::Half, 256, 4, 16, 4>(int4 const*, int4 const*)",
    ],
    "convolution": [
        "volta_scudnn_128x64_relu_interior_nn_v1",
        "volta_fp16_s884cudnn_fp16_256x64_ldg8_relu_f2f_exp_small_nhwc_tn_v1",
        "turing_h1688cudnn_128x128_ldg8_relu_exp_medium_nhwc_tn_v1",
        "ampere_h16816cudnn_256x128_ldg8_relu_f2f_exp_large_nhwc",
        "turing_int8_i8816cudnn_int8_256x64_ldg16_relu_singleBuffer_small_nt_v1",
        "trt_volta_hcudnn_128x64_relu_interior_nn_v1",
        "volta_dcudnn_128x64_stridedB_splitK_small_nn_v1",
        "cudnn_infer_volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
        "void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false>(int, int, int)",
        "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int)",
        "void wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int, int, int)",
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_execute_kernel_cudnn",
        "void cutlass_cudnn_train::Kernel<cutlass_tensorop_s1688wgrad_optimized_tf32_256x64>(P)",
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(Params)",
        "void cask_cudnn_infer::computeOffsetsKernel<false, false>(ComputeOffsetsParams)",
        "void fft2d_r2c_32x32<float, false, 0u, false>(float2*, float const*, int)",
        "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8_ws1x1_wr2x2_gkgs",
        "_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3I",
        "_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weightINS_47GridwiseGemm",
        "SubTensorOpWithCastTensor1d",
        "triton_tem_fused_convolution_4",
        "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<1, float, int>(P)",
    ],
    "attention": [
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4> >(P)",
        "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128> >(P)",
        "fmha_cutlassF_f16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::Params)",
        "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext",
        "void vllm::paged_attention_v2_kernel<unsigned short, 128, 16>(float*)",
        "_ZN7ck_tile6kentryILi256ELi2ENS_13FmhaFwdKernelINS_12FmhaPipelineE",
        "_attn_fwd",
        "_fwd_grouped_kernel_stage1_mla_attn",
        "void qk_int_sv_f8_attn_kernel<128, 64, 32, 64, 128>(signed char*)",
        "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0>(P)",
        "void flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576> >(Params)",
        "kernel_unified_attention_2d",
        "triton_tem_fused_flex_attention_2",
    ],
    "kv cache": [
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char>(__nv_bfloat16*)",
        "void vllm::concat_and_cache_mla_kernel<__nv_bfloat16>(__nv_bfloat16 const*)",
        "void flashinfer::AppendPagedKVCacheKernel<128, 8, __nv_bfloat16>(paged_kv_t)",
        "create_flashinfer_kv_indices_triton",
        "void vllm::copy_blocks_kernel<__nv_bfloat16>(long*, long*, long const*, int)",
    ],
    "fused, unnamed": ["triton__0d1d2d", "triton__0d1d2d3d4de5de"],
    "norm": [
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(cudnnTensorStruct)",
        "void at::native::batch_norm_backward_kernel<c10::BFloat16, float, int>(Accessor)",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)",
        "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel<float, float>(long)",
        "void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(c10::BFloat16*, c10::BFloat16 const*)",
        (
            "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
            "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long)"
        ),
        (
            "void at::native::<unnamed>::unrolled_elementwise_kernel_for_multi_outputs<3,"
            "at::native::(anonymous namespace)::batch_norm_update_stats_and_invert(at::Tensor)>"
        ),
        "MIOpenBatchNormFwdTrainSpatial",
        "triton_per_fused_native_layer_norm_0",
        "triton_red_fused__to_copy_add_embedding_mean_mul_pow_rsqrt_0",
        "void at::native::RowwiseMomentsCUDAKernel<float>(long, float, float const*, float*)",
    ],
    "softmax": [
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true>(float*)",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, float>(float*)",
        "void cunn_ClassNLLCriterion_updateOutput_kernel<float, float>(float*, float*)",
        "void at::native::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*)",
        "triton_red_fused__log_softmax_3",
        "triton_per_fused__softmax__to_copy_masked_fill_4",
    ],
    "elementwise": [
        "cupy_add__float64_float64_float64",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >()",
        (
            "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::"
            "(anonymous namespace)::where_kernel_impl(at::TensorIterator&)::{lambda()#1}> >(int)"
        ),
        "void at::native::unrolled_elementwise_kernel<at::native::MulScalarFunctor<float> >(int)",
        (
            "void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::arange_out"
            "(c10::Scalar const&)::{lambda()#1}>(int)"
        ),
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*)",
        "triton_poi_fused__to_copy_clone_transpose_1",
        "triton_poi_fused__scaled_dot_product_flash_attention_clone_2",
        "triton_poi_fused_add_bitwise_and_bitwise_not_bitwise_or_ge_lt_mul_sub_0",
        "void at::native::<unnamed>::elementwise_kernel<(int)128, (int)2, at::native::neg>()",
        "void vllm::act_and_mul_kernel<c10::Half, &vllm::silu_kernel<c10::Half> >(c10::Half*)",
        "void cudnn::ops::scalePackedTensor_kernel<float, float>(long, float*, float)",
        "cupy_multiply__float64_float64_float64",
        "loop_add_fusion_12",
        "loop_fusion",
        "wrapped_convert",
    ],
    "copy": [
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 1>(f)",
        (
            "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::"
            "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}> >(int)"
        ),
        "void at::native::unrolled_elementwise_kernel<at::native::copy_device_to_device(at::T&)>()",
        "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(params)",
        "batched_transpose_32x32_half",
        "void recat_copy_async_kernel<float>(long const*, long const*, float const*, float*)",
    ],
    "reduce": [
        "cupy_sum",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, MeanOps<float> > >()",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<bool, and_kernel_cuda> >()",
        "void cub::DeviceReduceSingleTileKernel<cub::DeviceReducePolicy<float> >(float*)",
        "triton_red_fused_sum_7",
        "triton_red_fused_clone_convolution_backward_sum_2",
    ],
    "embedding": [
        "void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_cta_per_row_1()",
        "void permute_pooled_embs_kernel<float>(float const*, long const*)",
        "void fbgemm_gpu::permute_2D_lengths_kernel<int>(int, int, int const*)",
        "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<float>(long*)",
    ],
    "index": [
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<float, int>(TensorInfo)",
        "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<> >(int)",
        "void at::native::_scatter_gather_elementwise_kernel<128, 4, TensorAssign>(int)",
        "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int)",
        "void linearize_index_kernel<long>(Accessor<long>)",
    ],
    "optimizer": [
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<ListMetadata<4>, "
            "at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4> >(Metadata)"
        ),
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>(int)",
        "void at::native::(anonymous namespace)::fused_sgd_kernel<float>(float*)",
    ],
    "pooling": [
        "void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>(int)",
        "void at::native::(anonymous namespace)::adaptive_average_pool<float>(float const*)",
        "void at::native::(anonymous namespace)::upsample_bilinear2d_out_frame<float>(int)",
    ],
    "random": [
        "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<f>",
        "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float>(Info)",
    ],
    "sort": [
        "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, int> >(int*)",
        "void cub::DeviceScanKernel<cub::DeviceScanPolicy<int>::Policy600, int*, int*>(int*)",
        "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(TensorInfo)",
        "void at::native::(anonymous namespace)::searchsorted_cuda_kernel<float, long>(long*)",
    ],
    "moe": [
        "void moe::dev::routing::routingIndicesHistogramKernel<KernelParams<__nv_bfloat16> >(P)",
        "void vllm::moe::moe_align_block_size_kernel<int>(int const*, int*)",
        "void vllm::moe::topkGatingSoftmax<4, 64, 4, 16>(float const*, bool const*, float*)",
        "fused_moe_kernel",
        "void tensorrt_llm::kernels::fusedBuildExpertMapsSortFirstTokenKernel<128, 64, 8>(int)",
        "void tensorrt_llm::kernels::cutlass_kernels::finalizeMoeRoutingKernel<float>(float*)",
    ],
    "quantization": [
        "void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>(F*)",
        (
            "void tensorrt_llm::kernels::quantize_with_block_size<(BlockScaleQuantizationType)2, "
            "__nv_bfloat16, 32, true>(int, flashinfer::QuantizationSFLayout)"
        ),
    ],
    "communication": [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)",
        "void vllm::cross_device_reduce_1stage<c10::BFloat16, 8>(RankData*)",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
    ],
    "recurrent": [
        "void RNN_blockPersist_fp_LSTM<__half, float, __half, 256, 4, 32>()",
        "void LSTM_elementWise_fp<float, float, float, (cudnnRNNBiasMode_t)2>(int, int, int)",
        "void elemWiseRNNcell<__half, float, (cudnnRNNMode_t)2>(int, int, int)",
    ],
    "fft": [
        "void regular_fft<512u, EPT<8u>, 8u, 8u>(kernel_arguments_t<unsigned int>)",
        "void dense_fft_radix16<float2>",
        "void spRadix0064B::kernel1Mem<unsigned int, float, 1>(kernel_parameters_t<float>)",
        "fft_rtc_fwd_len4096_factors_16_16_16_wgs_256_sbrr_dp_copy",
        "VkFFT_main_scale",
    ],
    "other": [
        (
            "void Kokkos::Impl::cuda_parallel_launch_local_memory<Kokkos::Impl::ParallelFor<"
            "PairLJCutComputeFunctor, Kokkos::RangePolicy<Kokkos::Cuda> > >(ForceFunctor)"
        ),
        "void RAJA::policy::cuda::impl::forall_cuda_kernel<256, ScaleFunctor>(ScaleFunctor, long)",
        (
            "void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__parallel_for::"
            "ParallelForAgent<thrust::cuda_cub::for_each_f<int*, BinFunctor>, long>, long>(long)"
        ),
        "bufferDifftime(float*)",
        "saxpy(double *, double *, double *, double, int)",
        "expertise(int)",
        "smoothe_kernel(float*)",
        "message_passing(float*)",
        "void build_GPU2<128, 4>(int*, int*, int*)",
        "triton_",
        "",
        "<<<>>>",
    ],
}


@pytest.mark.parametrize(
    ("of", "name"), [(of, name) for of, names in FAMILIES.items() for name in names]
)
def test_families(of: str, name: str) -> None:
    assert family(name) == of


def test_every_family_is_in_the_table() -> None:
    assert FAMILIES.keys() == set(KERNEL_FAMILIES)


@pytest.mark.parametrize(
    ("name", "kind", "of"),
    [
        ("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", "memcpy HtoD"),
        ("Memcpy DtoH (Device -> Pageable)", "gpu_memcpy", "memcpy DtoH"),
        ("Memcpy DtoD (Device -> Device)", "gpu_memcpy", "memcpy DtoD"),
        ("Memcpy PtoP (Device -> Device)", "gpu_memcpy", "memcpy PtoP"),
        ("CopyHostToDevice", "gpu_memcpy", "memcpy HtoD"),
        ("CopyDeviceToHost", "gpu_memcpy", "memcpy DtoH"),
        ("[CUDA memcpy Host-to-Device]", "gpu_memcpy", "memcpy"),
        ("Memcpy Unknown", "gpu_memcpy", "memcpy"),
        ("Memset (Device)", "gpu_memset", "memset"),
    ],
)
def test_copies_and_sets(name: str, kind: str, of: str) -> None:
    assert family(name, kind) == of


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("volta_sgemm_128x64_nt", True),
        ("ampere_sgemm_32x128_nn", True),
        ("cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1", True),
        ("void cutlass::Kernel<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(Params)", True),
        ("void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int)", True),
        ("void wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int, int, int)", True),
        ("void cudnn::cnn::wgrad2d_grouped_direct_kernel<float, float, float>(P)", False),
        ("void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1>(int, int)", True),
        ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(Params)", True),
        ("void wgrad_alg0_engine<__half, 128, 6, 7, 3, 3, 5, false, 512>(int, int, int)", False),
        ("void implicit_convolve_sgemm<__half, __half, 1024, 6, 7, 3, 3, 5, 1>(int)", False),
        ("maxwell_sgemm_128x64_nt", False),  # possibly a chip without tensor cores
        ("ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_stages_64x5_nn", False),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4>(P)", False),
        ("ampere_sgemmtf32_128x64", False),
    ],
)
def test_kernels_without_tensor_cores_are_recognized(name: str, plain: bool) -> None:
    assert plain_float([name]) == [name] * plain


@pytest.mark.parametrize(
    ("name", "is_double"),
    [
        ("volta_dgemm_128x64_nn", True),
        ("void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_64x64_16x3_nn_align1>(P)", True),
        ("sm80_xmma_gemm_f64f64_f64f64_f64_nn_n_tilesize64x64x16_stage3_kernel", True),
        ("void trsm_left_kernel<double, int=256, int=4>(cublasTrsmParams<double>)", True),
        ("Cijk_Ailk_Bljk_DB_MT64x64x16_MI16x16x4x1_SN", True),
        ("Cijk_Ailk_Bljk_SB_MT64x64x16_MI16x16x4x1_SN", False),
        ("void gemv2T_kernel_val<int, int, float, float>(double const)", False),
        ("void reduce_kernel<512, 1, ReduceOp<float, WelfordOps<float, double, int> > >()", False),
    ],
)
def test_kernels_in_double_precision_are_recognized(name: str, is_double: bool) -> None:
    assert double([name]) == [name] * is_double


@pytest.mark.parametrize(
    ("name", "is_unaligned"),
    [
        ("cutlass_80_wmma_tensorop_f16_s161616gemm_f16_32x32_64x1_tn_align2", True),
        ("void cutlass::Kernel2<cutlass_75_tensorop_f16_s1688gemm_f16_64x64_nn_align1>(P)", True),
        ("cutlass_80_tensorop_f16_s16816gemm_f16_256x128_32x3_nn_align8", False),
        ("cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_nn_align16", False),
        ("cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4", False),  # TF32: 16 bytes
        ("cutlass_80_tensorop_d884gemm_64x64_16x3_nn_align1", False),
        ("cutlass_80_simt_sgemm_128x32_8x5_nn_align1", False),
    ],
)
def test_kernels_for_unaligned_rows_are_recognized(name: str, is_unaligned: bool) -> None:
    assert unaligned([name]) == [name] * is_unaligned


ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, {}>(int)"
)
COPY = (
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::"
    "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{{lambda()#3}}::operator()() const::"
    "{{lambda()#7}}::operator()() const::{{lambda({})#1}}>(at::TensorIteratorBase&, int const&)::"
    "{{lambda(int)#1}}>(int)"
)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("volta_sgemm_128x64_nt", "volta_sgemm_128x64_nt"),
        ("void gemm<128>(float*)", "gemm"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        (
            ADD.format("std::array<char*, 3ul>"),
            "vectorized_elementwise_kernel<CUDAFunctor_add<float>>",
        ),
        (COPY.format("c10::BFloat16"), "elementwise_kernel<direct_copy_kernel_cuda(BFloat16)>"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_Generic"),
        ("void cutlass::Kernel<cutlass_80_simt_sgemm_128x32>(P)", "cutlass_80_simt_sgemm_128x32"),
        ("_ZN2ck16tensor_operation6device9gemm_kernE", "gemm_kern"),
        ("_ZL5saxpyifPfS_", "saxpy"),
        (
            "Cijk_Ailk_Bjlk_BBS_BH_MT32x32x64_MI16x16x16x1_SN_1LDSB0",
            "Cijk_Ailk_Bjlk_BBS_BH_MT32x32x64",
        ),
        ("void at::native::<unnamed>::softmax<(int)4, (bool)1, float>(float *)", "softmax"),
        ("a<b>::c<d>(e)", "c<d>"),
        ("", ""),
        ("(((", "((("),
        (
            "void ck_tile::kentry<256, 2, ck_tile::FmhaFwdKernel<ck_tile::Async>, X>(ck_tile::Y)",
            "FmhaFwdKernel<Async>",
        ),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert short_names([name]) == {name: short}


def test_short_names_keep_differences() -> None:
    names = ["f<float, 128, 2>(int)", "f<float, 128, 4>(int)", "f<half, 128, 4>(int)", "f<1>(int)"]
    assert list(short_names(names).values()) == ["f", "f<float,2>", "f<float,4>", "f<half,4>"]


def test_equal_short_names_are_numbered() -> None:
    names = ["void f(int)", "void f(long)", "void a::f(int)"]
    assert sorted(short_names(names).values()) == ["f", "f [2]", "f [3]"]


def test_functions() -> None:
    assert function("void at::native::(anonymous namespace)::f<int, g<2> >(int)") == "at::native::f"
    assert function("std::enable_if<true, void>::type x::f<1>(int)") == "x::f"
    assert function("enable_if<!T7, void>::type kernel<int, float>(T13)") == "kernel"
    assert function("_ZN2ck6device12_GLOBAL__N_13gemE") == "ck::device::gem"


LETTERS = st.text(alphabet="ab1_:<>()[]{},-# &*Z", max_size=60)


@given(st.lists(LETTERS, max_size=8, unique=True))
def test_every_name_has_a_unique_short_name(names: list[str]) -> None:
    result = short_names(names)
    assert result.keys() == set(names)
    assert len(set(result.values())) == len(names)
    for name in names:
        assert family(name) in KERNEL_FAMILIES


@pytest.mark.parametrize(
    "name",
    [
        "<" * 100_000,
        "a(" * 50_000,
        "_Z" + "9" * 5_000,
        "f<" + "a(b)::" * 20_000,
        "[lambda(" * 9_000,
    ],
    ids=["open", "calls", "digits", "nested", "lambdas"],
)
def test_adversarial_names_are_fast(name: str) -> None:
    began = time.perf_counter()
    assert family(name) in KERNEL_FAMILIES
    assert len(short_names([name])) == 1
    assert time.perf_counter() - began < 2


def test_families_of_few_and_many_names_are_the_same() -> None:
    names = [name for of_family in FAMILIES.values() for name in of_family]
    parts = ("embedding", "rotary_embedding", "y_embedding", "converge", "conv", "cone", "rope",
             "europe", "attn", "pattn", "Experts", "expertsx", "copy", "xcopy")  # fmt: skip
    names += [f"{before}{part}{after}" for part in parts for before in ("", "k_") for after in
              ("", "_1", "er")]  # fmt: skip
    many = families_of([*names, *(f"kernel_{i}" for i in range(200))])
    assert [many[name] for name in names] == [family(name) for name in names]


@pytest.mark.matrix
def test_many_names_take_linear_time() -> None:
    form = "void at::native::vectorized_elementwise_kernel<4, add<float>, array<char*, {}ul> >(int)"
    names = [form.format(i) for i in range(20_000)]
    start = time.process_time()
    families_of(names)
    short_names(names)
    assert time.process_time() - start < 20_000 * 200e-6
