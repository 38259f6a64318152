"""Kernel to launch to op to forward op, module and source line; and what must not be linked."""

from fusionadvisor.trace.measures import graphed_share, kind_share, linked_share, orphan_kernels
from tests.trace.samples import Event, annotation, four, frame, kernel, launch, of_category, op, read


def test_the_innermost_op_on_the_launching_thread_launched_it() -> None:
    timeline = read(
        [
            op("aten::linear", 10, 50),
            op("aten::addmm", 20, 30),
            op("aten::empty", 21, 2),
            launch(30, 1),
            kernel(60, 5, 1),
            op("aten::relu", 25, 30, tid=2),  # another thread, begun later: not the launcher
        ]
    )
    assert timeline.kernels["op"].tolist() == ["aten::addmm"]
    row = timeline.kernels["op_id"][0]
    assert timeline.ops["name"][timeline.ops["parent"][row]] == "aten::linear"
    assert timeline.kernels["launch_ns"].tolist() == [20_000]  # 30 µs, counted from the first event at 10 µs


def test_every_launch_api_is_a_launch() -> None:
    names = (
        "cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaLaunchCooperativeKernel",
        "hipLaunchKernel", "hipExtModuleLaunchKernel", "hipModuleLaunchKernel", "hipExtLaunchKernel", "newVendorStart",
    )  # fmt: skip
    events: list[Event] = []
    for i, name in enumerate(names):
        events += [
            op("aten::add", 100 * i + 1, 50),
            launch(100 * i + 5, i + 1, name=name),
            kernel(100 * i + 60, 5, i + 1),
        ]
    timeline = read([*events, launch(9000, 77, name="cudaStreamIsCapturing")])
    assert timeline.launches["name"].tolist() == list(names)
    assert linked_share(timeline) == 1.0


def test_a_graph_replay_counts_as_graphed_and_keeps_its_launch() -> None:
    replay = [launch(10, 5, name="cudaGraphLaunch"), *(kernel(20 + 10 * i, 5, 5) for i in range(6))]
    again = [launch(200, 9, name="cudaGraphLaunch"), *(kernel(220 + 10 * i, 5, 9) for i in range(6))]
    timeline = read([op("aten::mul", 1, 8), launch(3, 1), kernel(9, 5, 1), *replay, *again])
    assert timeline.kernels["graph_id"].tolist() == [-1] + [0] * 6 + [1] * 6
    assert timeline.launches["graph"].tolist() == [False, True, True]
    assert graphed_share(timeline) == 12 / 13
    assert orphan_kernels(timeline) == 0


def test_kernels_without_a_launch_are_orphans_and_not_attributed() -> None:
    timeline = read([event for event in four() if event["cat"] != "cuda_runtime"])
    assert (linked_share(timeline), orphan_kernels(timeline)) == (0.0, 4)
    assert timeline.kernels["op"].tolist() == [""] * 4
    assert (timeline.kernels["launch_ns"] == -1).all()
    assert (timeline.kernels["step"] == 0).all()


def test_a_correlation_of_zero_links_nothing() -> None:
    events = four()
    for event in [*of_category(events, "kernel"), *of_category(events, "cuda_runtime")]:
        event["args"]["correlation"] = 0
    assert linked_share(read(events)) == 0.0


def test_kernels_without_an_external_id_are_linked() -> None:
    events = four()
    for event in of_category(events, "kernel"):
        del event["args"]["External id"]
    assert linked_share(read(events)) == 1.0


def test_an_external_id_equal_to_the_correlation_is_no_op() -> None:
    # the profiler writes the correlation there when no op is known; op 40 is another one that was running
    timeline = read(
        [
            op("aten::stranger", 5, 90, {"External id": 40}, tid=2),
            launch(10, 40, {"External id": 40}),
            kernel(20, 5, 40, {"External id": 40}),
        ]
    )
    assert timeline.kernels["op"].tolist() == [""]
    assert orphan_kernels(timeline) == 0


def test_an_external_id_links_a_call_whose_thread_has_no_ops() -> None:
    # the oldest traces name threads differently for ops and for runtime calls
    events = [op("aten::mm", 5, 90, {"External id": 3}, tid=4093687616), launch(10, 40, {"External id": 3})]
    assert read([*events, kernel(20, 5, 40)]).kernels["op"].tolist() == ["aten::mm"]


def test_the_same_external_id_in_two_processes_is_never_confused() -> None:
    ours = [op("aten::mm", 5, 90, {"External id": 3}, pid=1, tid=11), launch(10, 40, {"External id": 3}, pid=1, tid=12)]
    theirs = [op("aten::relu", 5, 90, {"External id": 3}, pid=2, tid=21)]
    timeline = read([*theirs, *ours, *theirs, kernel(20, 5, 40, {"External id": 3})])
    assert timeline.kernels["op"].tolist() == ["aten::mm"]


def test_the_same_correlation_in_two_processes_goes_by_external_id_then_by_time() -> None:
    one = [op("aten::mm", 5, 20, {"External id": 3}, pid=1), launch(10, 40, {"External id": 3}, pid=1)]
    two = [op("aten::relu", 105, 20, {"External id": 8}, pid=2), launch(110, 40, {"External id": 8}, pid=2)]
    by_id = [kernel(130, 5, 40, {"External id": 3}), kernel(140, 5, 40, {"External id": 8})]
    assert read([*two, *one, *by_id]).kernels["op"].tolist() == ["aten::mm", "aten::relu"]
    by_time = [kernel(30, 5, 40), kernel(140, 5, 40)]
    assert read([*two, *one, *by_time]).kernels["op"].tolist() == ["aten::mm", "aten::relu"]


def test_a_backward_kernel_knows_its_forward_op_module_and_line() -> None:
    timeline = read(
        [
            frame("train.py(7): step", 0, 400),
            frame("nn.Module: Net_0", 1, 100),
            frame("nn.Module: Linear_3", 2, 90),
            frame("torch/nn/modules/linear.py(120): forward", 3, 80),
            op("aten::linear", 4, 60, {"Sequence number": 9, "Fwd thread id": 0}),
            op("aten::addmm", 5, 40, {"Sequence number": 9, "Fwd thread id": 0}),
            launch(6, 1),
            kernel(20, 5, 1),
            op("autograd::engine::evaluate_function: AddmmBackward0", 150, 60, tid=2),
            op("AddmmBackward0", 151, 50, {"Sequence number": 9, "Fwd thread id": 1}, tid=2),
            op("aten::mm", 152, 20, tid=2),
            launch(153, 2, tid=2),
            kernel(180, 5, 2),
            annotation("Optimizer.step#SGD.step", 250, 90),
            op("aten::_foreach_add_", 255, 50),
            launch(260, 3),
            kernel(280, 5, 3),
        ]
    )
    kernels = timeline.kernels
    assert kernels["phase"].tolist() == ["forward", "backward", "optimizer"]
    assert kernels["op"].tolist() == ["aten::addmm", "aten::mm", "aten::_foreach_add_"]
    assert [timeline.ops["name"][row] if row >= 0 else "" for row in kernels["forward_op_id"]] == [
        "",
        "aten::addmm",
        "",
    ]
    assert kernels["module"].tolist() == ["Net#0/Linear#3", "Net#0/Linear#3", ""]
    assert kernels["source"].tolist() == ["train.py:7"] * 3


def test_arrows_link_backward_ops_without_sequence_numbers() -> None:
    def arrow(ph: str, ts: float, tid: int) -> Event:
        return {"ph": ph, "id": 4, "pid": 1, "tid": tid, "ts": ts, "cat": "fwdbwd", "name": "fwdbwd"}

    timeline = read(
        [
            op("aten::mul", 5, 40),
            arrow("s", 5, 1),
            op("MulBackward0", 150, 60, tid=2),
            arrow("f", 150, 2),
            op("aten::mul", 152, 20, tid=2),
            launch(153, 2, tid=2),
            kernel(180, 5, 2),
        ]
    )
    assert timeline.kernels["forward_op_id"].tolist() == [0]
    assert timeline.kernels["phase"].tolist() == ["backward"]


def test_the_source_is_the_innermost_line_of_user_code() -> None:
    library = "/usr/lib/python3.11/site-packages/"
    timeline = read(
        [
            frame("<string>(1): <module>", 0, 100),
            frame("/home/me/run.py(3): <module>", 1, 98),
            frame(library + "transformers/models/vit/modeling_vit.py(213): forward", 2, 90),
            frame(library + "torch/nn/functional.py(1): linear", 3, 80),
            frame("contextlib.py(78): inner", 4, 70),
            frame("<built-in method mm of type object at 0x7f>", 5, 60),
            op("aten::mm", 6, 50),
            launch(7, 1),
            kernel(20, 5, 1),
        ]
    )
    assert timeline.kernels["source"].tolist() == ["transformers/models/vit/modeling_vit.py:213"]


def test_a_copy_is_told_by_its_arguments() -> None:
    name = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>"

    def copy(at: float, number: int, dtypes: list[str], strides: list[list[int]]) -> list[Event]:
        args = {"Input Dims": [[4, 8], [4, 8], []], "Input type": [*dtypes, "Scalar"], "Input Strides": [*strides, []]}
        return [op("aten::copy_", at, 30, args), launch(at + 5, number), kernel(at + 50, 5, number, name=name)]

    timeline = read(
        copy(0, 1, ["float", "c10::Half"], [[8, 1], [8, 1]])
        + copy(100, 2, ["float", "float"], [[8, 1], [1, 4]])
        + copy(200, 3, ["float", "float"], [[8, 1], [8, 1]])
    )
    assert timeline.kernels["kind"].tolist() == ["cast", "layout", "copy"]
    assert kind_share(timeline, "cast") == 1 / 3


def test_copies_and_fills_of_memory_are_linked_too() -> None:
    copied = kernel(60, 7, 3, {"bytes": 4096}, name="Memcpy DtoH (Device -> Pageable)") | {"cat": "gpu_memcpy"}
    timeline = read([*four(), op("aten::copy_", 5200, 50), launch(5210, 3, name="cudaMemcpyAsync"), copied])
    memory = timeline.memory
    assert memory["kind"].tolist() == ["memcpy"]
    assert memory["bytes"].tolist() == [4096]
    assert memory["op"].tolist() == ["aten::copy_"]
    assert len(timeline.launches) == 4


def test_waiting_calls_are_syncs() -> None:
    calls = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "hipMemcpyWithStream", "cudaMemcpy", "cudaMemcpyAsync")
    timeline = read([*four(), *(launch(5300 + 10 * i, 90 + i, name=name) for i, name in enumerate(calls))])
    assert timeline.syncs["name"].tolist() == list(calls[:4])


def test_shapes_are_tuples_and_absent_ones_none() -> None:
    timeline = read(
        [*four(), op("aten::cat", 5300, 5, {"Input Dims": [[[2, 3], [4]], []], "Concrete Inputs": ["", "0"]})]
    )
    assert timeline.ops["shapes"].tolist()[-1] == (((2, 3), (4,)), ())
    assert timeline.ops["concrete"].tolist()[-1] == ("", "0")
    assert timeline.ops["strides"].tolist() == [None] * 5


def test_a_recorded_call_stack_gives_the_line_where_there_are_no_frames() -> None:
    stack = "/env/site-packages/torch/nn/functional.py(9): linear;model.py(31): forward;run.py(3): <module>"
    timeline = read([op("aten::mm", 5, 50, {"Call stack": stack}), launch(6, 1), kernel(20, 5, 1)])
    assert timeline.kernels["source"].tolist() == ["model.py:31"]
    assert timeline.recording.stacks
