"""The table of rules, op by op: counts derived by hand from what ATen and the libraries do, and seen in traces."""

from math import ceil

import pytest

from fusionadvisor.capture.predicted import rules
from fusionadvisor.capture.predicted.gpus import DEFAULT, named, predictable
from fusionadvisor.capture.predicted.kernels import Call, Kernel, Product, Transfer, dense_order, splits
from fusionadvisor.capture.predicted.optimizers import multi_tensor_launches
from fusionadvisor.capture.predicted.times import LOW, time_of
from fusionadvisor.errors import InputError
from fusionadvisor.flow.graph import Value
from fusionadvisor.trace.kinds import KINDS

H100, A100, V100 = named("h100"), named("a100"), named("v100")
SIZES = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "bool": 1, "uint8": 1}


def tensor(
    *shape: int, dtype: str = "bfloat16", strides: tuple[int, ...] | None = None, device: str = "cuda:0"
) -> Value:
    if strides is None:
        strides = tuple(_product(shape[d + 1 :]) for d in range(len(shape)))
    return Value(0, id(shape), shape, dtype, strides, device=device, itemsize=SIZES[dtype])


def _product(sizes: tuple[int, ...]) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count


def labels(call: Call, gpu: str = "h100") -> list[str]:
    return [
        w.label.partition("<")[0] if isinstance(w, Kernel) else f"memcpy {w.direction}"
        for w in rules.launched(call, named(gpu))
    ]


def addmm(m: int, k: int, n: int, dtype: str = "bfloat16") -> Call:
    weight = tensor(k, n, dtype=dtype, strides=(1, k))
    return Call("addmm", (tensor(n, dtype=dtype), tensor(m, k, dtype=dtype), weight), (tensor(m, n, dtype=dtype),))


@pytest.mark.parametrize(
    ("m", "k", "n", "launched"),
    [  # shapes of three H100 traces and what they launched
        (788, 768, 3072, ["gemm"]),
        (788, 3072, 768, ["gemm"]),
        (5, 3072, 768, ["gemm_splitk", "splitk_reduce"]),
        (5, 768, 768, ["gemm"]),
        (5, 768, 3072, ["gemm"]),
        (5184, 1024, 4, ["gemm"]),
        (5184, 1024, 1, ["copy", "gemv"]),
    ],
)
def test_products_with_a_bias(m: int, k: int, n: int, launched: list[str]) -> None:
    assert labels(addmm(m, k, n)) == launched


def test_hoppers_persistent_kernels_zero_a_counter_from_two_waves_on() -> None:
    def zeroed(m: int, n: int) -> int:
        (kernel,) = rules.launched(addmm(m, 1024, n), H100)
        assert isinstance(kernel, Kernel)
        return kernel.memset

    assert (zeroed(8944, 1024), zeroed(5185, 1024), zeroed(5185, 4096)) == (4, 4, 4)
    assert (zeroed(788, 3072), zeroed(5184, 768)) == (0, 0)  # 168 and 246 tiles of 264


def test_rows_and_scalars_of_products() -> None:
    def mm(m: int, k: int, n: int) -> list[str]:
        return labels(Call("mm", (tensor(m, k), tensor(k, n, strides=(1, k))), (tensor(m, n),)))

    assert mm(1, 768, 768) == ["gemv"]
    assert mm(1, 768, 1) == ["dot", "dot_reduce"]
    assert labels(Call("mm", (tensor(64, 64, strides=(128, 2)), tensor(64, 64)), (tensor(64, 64),))) == ["copy", "gemm"]


def test_copies_are_kernels_only_where_something_changes() -> None:
    flat, turned = tensor(8, 16), tensor(8, 16, strides=(1, 8))
    assert labels(Call("clone", (flat,), (flat,))) == ["memcpy DtoD"]
    assert labels(Call("clone", (turned,), (flat,))) == ["copy"]
    assert labels(Call("_to_copy", (flat,), (tensor(8, 16, dtype="float32"),))) == ["copy"]
    assert labels(Call("_to_copy", (tensor(8, device="cpu"),), (tensor(8),))) == ["memcpy HtoD"]
    assert labels(Call("masked_fill", (flat, tensor(8, 16, dtype="bool")), (flat,))) == ["memcpy DtoD", "masked_fill"]


def test_what_is_on_the_cpu_or_empty_launches_nothing() -> None:
    there = tensor(8, device="cpu")
    assert labels(Call("add", (there, there), (there,))) == []
    assert labels(Call("cat", (tensor(0, 8),), (tensor(0, 8),))) == []
    assert labels(Call("empty", (), (tensor(8),))) == []


def test_cat_takes_128_tensors_a_launch() -> None:
    parts = (tensor(2, 4),) * 300
    assert len(labels(Call("cat", parts, (tensor(600, 4),)))) == ceil(300 / 128)
    mixed = (tensor(2, 4), tensor(2, 4, dtype="float32"))
    assert labels(Call("cat", mixed, (tensor(4, 4, dtype="float32"),))) == ["copy", "copy"]


def test_norms() -> None:
    def layer_norm(width: int) -> list[str]:
        x = tensor(4, 197, width)
        return labels(
            Call("native_layer_norm", (x, tensor(width), tensor(width)), (x,), arguments={"normalized_shape": (width,)})
        )

    assert layer_norm(768) == ["vectorized_layer_norm"]
    assert layer_norm(767) == ["RowwiseMoments", "layer_norm_forward"]
    image, channel = tensor(32, 64, 56, 56, dtype="float32"), tensor(64, dtype="float32")
    norm = Call("native_batch_norm", (image, *[channel] * 4), (image,), arguments={"training": True})
    assert labels(norm) == ["batch_norm"]
    groups = Call("native_group_norm", (image, channel, channel), (image,), arguments={"HxW": 3136})
    assert len(labels(groups)) == 3


def test_convolutions_by_type_and_generation() -> None:
    def conv(dtype: str, gpu: str) -> list[str]:
        x, w, y = (tensor(*s, dtype=dtype) for s in ((4, 3, 224, 224), (768, 3, 16, 16), (4, 768, 14, 14)))
        return labels(Call("convolution", (x, w, tensor(768, dtype=dtype)), (y,)), gpu)

    assert conv("bfloat16", "h100") == ["nchwToNhwc", "nchwToNhwc", "fprop", "nhwcToNchw", "add"]
    assert conv("float32", "a100") == ["nchwToNhwc", "nchwToNhwc", "fprop", "add"]  # as an AlexNet's trace of an A100
    assert conv("float32", "v100") == ["fprop", "add"]


def test_few_queries_split_the_keys() -> None:
    def attention(batch: int, rows: int, columns: int) -> list[str]:
        q, k = tensor(batch, 12, rows, 64), tensor(batch, 12, columns, 64)
        return labels(Call("_scaled_dot_product_flash_attention", (q, k, k), (q,)))

    assert attention(4, 197, 197) == ["flash_fwd"]
    assert attention(1, 1, 4096) == ["flash_fwd", "flash_fwd_splitkv_combine"]


@pytest.mark.parametrize(
    ("sizes", "tensors", "launches"),
    [
        ([10] * 30, 30, 1),
        ([10] * 31, 30, 2),
        ([65536 * 320], 110, 1),  # one tensor that fills every block of a launch
        ([65536 * 320 + 1], 110, 2),
        ([65536 * 321, 10], 110, 2),
        ([], 110, 0),
        ([0, 10], 110, 1),
    ],
)
def test_optimizers_walk_in_chunks(sizes: list[int], tensors: int, launches: int) -> None:
    assert multi_tensor_launches(sizes, tensors) == launches


def test_lists_that_differ_are_walked_one_by_one() -> None:
    same = (tensor(8), tensor(4))
    mixed = (tensor(8), tensor(4, dtype="float32"))
    assert len(labels(Call("_foreach_mul_", same, (), {"self": same}))) == 1
    assert len(labels(Call("_foreach_mul_", mixed, (), {"self": mixed}))) == 2


def test_large_elementwise_ops_are_split_for_32_bit_indices() -> None:
    big = tensor(2**15, 2**15, 2)  # 4 GiB
    assert splits(Call("add", (big, big), (big,))) == 4
    assert len(labels(Call("add", (big, big), (big,)))) == 4


def test_an_op_without_a_rule_is_one_kernel_and_known_as_such() -> None:
    call = Call("somebodys_own", (tensor(8),), (tensor(8),))
    assert rules.entry(call) is None
    assert labels(call) == ["somebodys_own"]


def test_the_table_names_every_op_once_with_a_reason_and_known_kinds() -> None:
    listed = [name for entry in rules.TABLE for name in entry.ops.split()]
    assert len(listed) == len(set(listed))
    assert all(entry.why for entry in rules.TABLE)
    sample = tensor(8, 8, dtype="float32")
    for name in ("add", "sum", "_softmax", "index", "sort", "cumsum", "embedding", "native_dropout", "nonzero"):
        for work in rules.launched(Call(name, (sample, sample), (sample,)), H100):
            assert isinstance(work, Transfer) or work.kind in KINDS


def test_dense_order_tells_layouts_apart() -> None:
    assert dense_order(tensor(2, 3, 4)) == (0, 1, 2)
    assert dense_order(tensor(2, 3, 4, strides=(12, 1, 3))) == (0, 2, 1)
    assert dense_order(tensor(2, 3, strides=(6, 1))) is None
    assert dense_order(tensor(1, 3, strides=(99, 1))) == (1,)


def test_misaligned_products_are_slow_and_other_gpus_uncalibrated() -> None:
    def us(n: int) -> float:
        product = Product(1, 4096, n, 4096, 2, leading=(n,))
        return time_of(Kernel("gemm", "gemm", "gemm", 1, product=product), H100).likely_us

    assert us(4095) > 5 * us(4096)
    copy = Kernel("elementwise", "add", "pointwise", 1 << 26)
    assert time_of(copy, H100).calibrated
    assert not time_of(copy, A100).calibrated
    assert time_of(copy, H100).low_us == pytest.approx(LOW * time_of(copy, H100).likely_us)
    # 64 MiB at 0.88 of 3350 GB/s take 22.76 µs, the start-up time aside
    assert time_of(copy, H100).likely_us == pytest.approx(22.82, abs=0.05)


def test_gpus_are_found_by_what_people_type() -> None:
    assert named("h100").name == named("H100").name == named("nvidia h100 sxm").name == DEFAULT
    assert named("a100-40gb").name == "A100 40GB"
    assert all(named(name).name == name for name in predictable())
    with pytest.raises(InputError):
        named("")


@pytest.mark.parametrize(
    ("asked", "got"),
    [("h100", "H100 SXM"), ("NVIDIA H100", "H100 SXM"), ("h100-pcie", "H100 PCIe"), ("a100-80", "A100 80GB SXM"),
     ("A100-40GB", "A100 40GB"), ("t4", "T4")],
)  # fmt: skip
def test_a_gpu_is_named_by_the_start_of_its_name(asked: str, got: str) -> None:
    assert named(asked).name == got


@pytest.mark.parametrize(
    ("asked", "hint"), [("h1000", "'H100'"), ("h10", "'H100'"), ("h", "Known: V100"), ("a100-8", "A100")]
)
def test_a_number_cut_short_is_another_gpu(asked: str, hint: str) -> None:
    with pytest.raises(InputError, match=hint):
        named(asked)


INDEX, MANY = tensor(100, dtype="int64"), tensor(10_000, dtype="int64")


def test_writing_through_a_mask_of_one_value_fills() -> None:
    mask, one = tensor(64, 64, dtype="bool"), tensor(1)
    assert labels(Call("index_put_", (tensor(64, 64), mask, one), (tensor(64, 64),))) == ["masked_fill"]
    several = labels(Call("index_put_", (tensor(64, 64), mask, tensor(9)), (tensor(64, 64),)))
    # the mask is turned into indices first, which the CPU waits for
    assert several == ["DeviceReduce", "memcpy DtoH", "DeviceCompactInit", "DeviceSelect", "write_indices", "index_put"]


def test_adding_up_equal_indices_sorts_them_first() -> None:
    table = tensor(4000, 1)
    assert labels(Call("index_put_", (table, INDEX, tensor(100, 1)), (table,))) == ["index_put"]
    few = Call("index_put_", (table, INDEX, tensor(100, 1)), (table,), arguments={"accumulate": True})
    assert labels(few) == ["linear_index", "linear_index", "arange", "RadixSortSingleTile", "indexing_backward"]
    many = Call("index_put_", (table, MANY, tensor(10_000, 1)), (table,), arguments={"accumulate": True})
    # keys below 4000 have 12 bits, of which a pass takes 8
    assert labels(many)[3:-1] == [
        "RadixSortHistogram",
        "RadixSortExclusiveSum",
        "RadixSortOnesweep",
        "RadixSortOnesweep",
    ]


def test_sorting_takes_one_block_or_a_pass_for_every_eight_bits() -> None:
    short, long = tensor(8, 4096, dtype="float32"), tensor(1, 4097, dtype="float32")
    assert labels(Call("sort", (short,), (short,), arguments={"dim": -1}))[1:] == ["fill_index", "sort_in_place"]
    passes = labels(Call("sort", (long,), (long,), arguments={"dim": -1}))
    assert passes[0] == "fill_reverse_indices"
    assert passes.count("RadixSortOnesweep") == 32 // 8


def test_the_largest_alone_needs_no_sorting() -> None:
    logits = tensor(4, 32_000)
    for arguments, launched in (
        ({"k": 1}, ["gatherTopK"]),
        ({"k": 50}, ["gatherTopK", "sort_in_place"]),
        ({"k": 50, "sorted": False}, ["gatherTopK"]),
    ):
        assert labels(Call("topk", (logits,), (tensor(4, 50),), arguments=dict(arguments))) == launched


def test_scans_of_one_dimension_and_of_all() -> None:
    rows, flat = tensor(8, 512), tensor(4096)
    assert labels(Call("cumsum", (rows,), (rows,), arguments={"dim": -1})) == ["tensor_kernel_scan"]
    assert labels(Call("cumsum", (flat,), (flat,), arguments={"dim": 0})) == ["DeviceScanInit", "DeviceScan"]


def test_gradients_of_an_embedding() -> None:
    gradient, weight = tensor(3072, 64), tensor(1000, 64)
    few = Call("embedding_dense_backward", (gradient, tensor(3072, dtype="int64")), (weight,))
    assert labels(few)[-1] == "embedding_backward"
    assert len(labels(few)) == 2  # zeroed, then added to
    many = labels(Call("embedding_dense_backward", (tensor(9999, 64), tensor(9999, dtype="int64")), (weight,)))
    assert many[0] == "arange"
    assert many.count("RadixSortOnesweep") == 2  # rows below 1000 have 10 bits
    assert many[-1] == "sum_and_scatter"
