"""What a name means: kernels of every vendor and code generator, as real traces spell them."""

import pytest

from fusionadvisor.trace.kinds import KINDS, copy_kind, kernel_kind, linked_kind, op_kind

NATIVE = "void at::native::"
NAMES = {
    "volta_sgemm_128x64_nt": "gemm",
    "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn": "gemm",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off": "gemm",
    "nvjet_sm103_tst_256x16_64x6_4x1_v_bz_TNT": "gemm",
    "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x128_32x5_tn_align8>(x::Params)": "gemm",
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x256x32_MI16x16x1_SN_LDSB1": "gemm",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasLt::cublasSplitKParams<float>)": "gemm",
    "void gemv2T_kernel_val<int, int, float, float, float, 128>(cublasGemvParamsEx)": "gemm",
    "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1": "conv",
    "void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int)": "conv",
    "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16": "conv",
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<96>>(x)": "attention",
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)": "attention",
    "_ZN7ck_tile6kentryILi2ENS_38FmhaBatchPrefillWithPagedKVCacheKernelINS_40BlockFmha": "attention",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(cudnnTensorStruct)": "norm",
    f"{NATIVE}(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float)": "norm",
    "void cuApplyLayerNorm<c10::Half, float, c10::Half>(c10::Half*)": "norm",
    "void (anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float>(c10::BFloat16*)": "softmax",
    f"{NATIVE}reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float>>>(x)": "reduction",
    f"{NATIVE}vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>>(int)": (
        "elementwise"
    ),
    f"{NATIVE}vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>(int)": "elementwise",
    f"{NATIVE}vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda(x)>(int)": "cast",
    f"{NATIVE}(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>(float*)": "cat",
    f"{NATIVE}index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<x>>(long)": "index",
    f"{NATIVE}(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4>(long)": "rng",
    f"{NATIVE}(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4, bool>(x)": "rng",
    "void at_cuda_detail::cub::DeviceScanKernel<at_cuda_detail::cub::DeviceScanPolicy<long>>(x)": "sort",
    "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, int, int>>(int*)": "sort",
    f"{NATIVE}(anonymous namespace)::max_pool_forward_nchw<float, float>(int, float const*)": "pool",
    f"{NATIVE}(anonymous namespace)::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>>(x)": "optimizer",
    "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(x)": "layout",
    "batched_transpose_32x32_half": "layout",
    "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)": "collective",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)": "collective",
    "triton_poi_fused__to_copy_clamp_div_gelu_round_4_0d1d2d3de": "fused",
    "triton_red_fused_add_native_layer_norm_9": "fused",
    "triton_per_fused_add_native_layer_norm_backward_7": "fused",
    "triton_tem_fused_addmm_7": "fused",
    "triton__0d1d2d3d4de": "fused",
    "fused__autocast_to__1284193": "fused",
    "void (anonymous namespace)::act_and_mul_kernel<__nv_bfloat16, true, false>(x)": "fused",
    "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64ELi8E": "fused",
    f"{NATIVE}vectorized_elementwise_kernel<4, fbgemm_gpu::_float_to_hfp8_gpu(at::Tensor const&, long)>(int)": "cast",
    "void fbgemm_gpu::permute_2D_data_kernel<false, int, int>(int)": "layout",
    "void split_embedding_codegen_forward_unweighted_kernel<c10::Half, c10::Half, float, false, long>(x)": "embedding",
    "kernel_cutlass_kernel_flashinfernormkernelsfused_add_rmsnormFusedAddRMSNormKernel_object_at__tensorptr": "fused",
    "kernel_cutlass_kernel_flashinfernormkernelsrmsnormRMSNormKernel_object_at__tensorptrbf16gmemalign128": "norm",
    "void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16, __hip_bfloat16>(x)": "index",
    "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)": "elementwise",
    f"{NATIVE}vectorized_elementwise_kernel<4, at::native::masked_fill_kernel(x)>(int)": "elementwise",
    f"{NATIVE}elementwise_kernel<128, 2, at::native::masked_scale_kernel<bool>(x)>": "elementwise",
    f"{NATIVE}reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::WelfordOps<float, int>>>": "reduction",
    f"{NATIVE}batch_norm_collect_statistics_kernel<at::native::Welford<float>>(x)": "norm",
    "void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::arange_cuda_out(x)>": "elementwise",
    "void cunn_ClassNLLCriterion_updateOutput_kernel<float, float>(float*)": "reduction",
    "void reduce_1Block_kernel<float, 128, 7, cublasGemvTensorStridedBatched<float>>(x)": "gemm",
    "my_own_kernel(float*, int)": "custom",
    "Kernel": "custom",
}


@pytest.mark.parametrize("name", NAMES)
def test_kernel_kind(name: str) -> None:
    assert kernel_kind(name) == NAMES[name]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::addmm", "gemm"),
        ("aten::mkldnn_convolution", "conv"),
        ("aten::convolution_backward", "conv"),
        ("aten::_scaled_dot_product_flash_attention", "attention"),
        ("aten::native_layer_norm", "norm"),
        ("aten::_softmax", "softmax"),
        ("aten::sum", "reduction"),
        ("aten::gelu", "elementwise"),
        ("aten::mul_", "elementwise"),
        ("aten::threshold_backward", "elementwise"),
        ("aten::_to_copy", "cast"),
        ("aten::cat", "cat"),
        ("aten::index_select", "index"),
        ("aten::native_dropout", "rng"),
        ("aten::max_pool2d_with_indices", "pool"),
        ("aten::_fused_adamw_", "optimizer"),
        ("cpp_fused_add_native_layer_norm_1", "fused"),
        ("mylib::thing", "custom"),
    ],
)
def test_op_kind(name: str, kind: str) -> None:
    assert op_kind(name) == kind


def test_every_kind_is_listed() -> None:
    assert set(NAMES.values()) <= set(KINDS)


def test_the_op_tells_what_the_name_does_not() -> None:
    assert linked_kind("gemm", "aten::cudnn_convolution") == "conv"
    assert linked_kind("gemm", "aten::addmm") == "gemm"
    assert linked_kind("custom", "aten::_softmax") == "softmax"
    assert linked_kind("custom", "") == "custom"
    assert linked_kind("layout", "aten::cudnn_convolution") == "layout"


def test_copies_by_their_arguments() -> None:
    shape, dense, turned = (4, 8), (8, 1), (1, 4)
    assert copy_kind((shape, shape), ("float", "c10::Half"), None) == "cast"
    assert copy_kind((shape, shape), ("float", "float"), (dense, turned)) == "layout"
    assert copy_kind((shape, shape), ("float", "float"), (dense, dense)) == "copy"
    assert copy_kind((shape, (8,)), ("float", "float"), (dense, dense)) == "layout"
    assert copy_kind((shape, shape), ("float", "float"), None) is None
    assert copy_kind(None, None, None) is None
