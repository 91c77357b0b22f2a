// A simulated accelerator for tests: tensors in host memory that PyTorch treats as tensors of another device.
//
// Operators run on the CPU, through a boxed fallback that first applies the rules of a real device: tensors of two
// devices cannot be mixed, and values reach the CPU only by a copy. Each event that would make the CPU wait for a real
// device is reported to a callback in Python. Not simulated: kernels, streams, memory limits, device-side assertions.
//
// Environment, read when the library is loaded:
//   SIMULATED_DEVICE        "cuda", in a CPU build of PyTorch, or "private": PrivateUse1, without float64
//   SIMULATED_DEVICE_COUNT  number of devices
//
// See simulated_device.py for building and loading.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace simulated {
using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::Storage;
using c10::StorageImpl;

static const bool is_cuda = std::string(getenv("SIMULATED_DEVICE")) == "cuda";
static const bool has_float64 = is_cuda;
static const c10::DeviceType device_type = is_cuda ? c10::kCUDA : c10::kPrivateUse1;
static const DispatchKey device_key = is_cuda ? DispatchKey::CUDA : DispatchKey::PrivateUse1;
static const DeviceIndex device_count = (DeviceIndex)atoi(getenv("SIMULATED_DEVICE_COUNT"));
static thread_local DeviceIndex current_device = 0;
static PyObject* callback = nullptr;  // called with the kind of the event and the name of the operator

static void report(const std::string& kind, const std::string& op) {
  if (!callback || !Py_IsInitialized()) return;
  py::gil_scoped_acquire gil;
  if (PyObject* result = PyObject_CallFunction(callback, "ss", kind.c_str(), op.c_str()))
    Py_DECREF(result);
  else
    throw py::error_already_set();
}

static bool on_device(const Tensor& t) { return t.defined() && t.device().type() == device_type; }

static void set_device(DeviceIndex index) {
  TORCH_CHECK(index < device_count, "CUDA error: invalid device ordinal");
  if (index >= 0) current_device = index;
}

static void check_float64(const Tensor& t, const std::string& op) {
  TORCH_CHECK(has_float64 || !on_device(t) || t.scalar_type() != at::kDouble, "The device has no float64 (", op, ").");
}

// Memory: a storage of the device owns a storage of the CPU with the same data.

static std::atomic<int64_t> bytes{0}, peak_bytes{0};

struct Backing {
  Storage storage;
  size_t size;
};

static void release_backing(void* context) {
  auto* backing = static_cast<Backing*>(context);
  bytes -= backing->size;
  delete backing;
}

static c10::DataPtr device_pointer(const Storage& storage, DeviceIndex index) {
  bytes += storage.nbytes();
  peak_bytes = std::max<int64_t>(peak_bytes, bytes);
  return {storage.mutable_data(), new Backing{storage, storage.nbytes()}, &release_backing, Device(device_type, index)};
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    auto* cpu = c10::GetAllocator(c10::kCPU);
    auto use_size = Storage::use_byte_size_t();
    return device_pointer(Storage(use_size, size, cpu->allocate(size), cpu, true), current_device);
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* target, const void* source, size_t size) const override { memcpy(target, source, size); }
};
static Allocator allocator;

static Storage device_storage(const Storage& storage, DeviceIndex index) {
  auto use_size = Storage::use_byte_size_t();
  return Storage(use_size, storage.nbytes(), device_pointer(storage, index), &allocator, true);
}

static Storage cpu_storage(const Storage& storage) {
  TORCH_CHECK(storage.data_ptr().get_deleter() == &release_backing, "The storage has no memory of the device.");
  return static_cast<Backing*>(storage.data_ptr().get_context())->storage;
}

// Pinned memory is memory of the CPU whose address is recorded: only copies from it are asynchronous.

static std::mutex pinned_mutex;
static std::unordered_set<const void*> pinned_addresses;

struct PinnedAllocator final : c10::Allocator {
  static void release(void* data) {
    std::lock_guard<std::mutex> lock(pinned_mutex);
    pinned_addresses.erase(data);
    c10::GetAllocator(c10::kCPU)->raw_deallocate(data);
  }
  c10::DataPtr allocate(size_t size) override {
    std::lock_guard<std::mutex> lock(pinned_mutex);
    void* data = c10::GetAllocator(c10::kCPU)->raw_allocate(std::max<size_t>(size, 1));
    pinned_addresses.insert(data);
    return {data, data, &release, Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, size_t size) const override { memcpy(target, source, size); }
};
static PinnedAllocator pinned_allocator;

static bool is_pinned(const void* data) {
  std::lock_guard<std::mutex> lock(pinned_mutex);
  return pinned_addresses.count(data) > 0;
}

// Random numbers: a generator of the device owns a generator of the CPU.

struct Generator final : c10::GeneratorImpl {
  at::Generator cpu = at::detail::createCPUGenerator();
  explicit Generator(DeviceIndex index) : GeneratorImpl(Device(device_type, index), DispatchKeySet(device_key)) {}
  void set_current_seed(uint64_t seed) override { cpu.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { cpu.set_offset(offset); }
  uint64_t get_offset() const override { return cpu.get_offset(); }
  uint64_t current_seed() const override { return cpu.current_seed(); }
  uint64_t seed() override { return cpu.seed(); }
  void set_state(const c10::TensorImpl& state) override { cpu.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu.unsafeGetGeneratorImpl()->get_state(); }
  Generator* clone_impl() const override {
    auto* copy = new Generator(device().index());
    copy->cpu = cpu.clone();
    return copy;
  }
};

static at::Generator new_generator(DeviceIndex index) {
  return at::make_generator<Generator>(index < 0 ? current_device : index);
}

static const at::Generator& default_generator(DeviceIndex index) {
  static std::vector<at::Generator> all = [] {
    std::vector<at::Generator> generators;
    for (DeviceIndex i = 0; i < device_count; i++) generators.push_back(new_generator(i));
    return generators;
  }();
  return all.at(index < 0 ? current_device : index);
}

// Operators

using Names = std::unordered_set<std::string>;

// The size of the result depends on values, so CUDA waits for them.
static const Names SYNCHRONIZING = {
    "aten::nonzero", "aten::argwhere", "aten::masked_select", "aten::_unique", "aten::_unique2", "aten::unique_dim",
    "aten::unique_consecutive", "aten::equal", "aten::bincount", "aten::repeat_interleave"};
// CUDA accepts indices on the CPU.
static const Names INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"};
// CUDA accepts tensors without dimensions on the CPU as operands, except for these operators.
static const Names WITHOUT_SCALARS = {
    "aten::embedding", "aten::index_select", "aten::gather", "aten::cat", "aten::mm", "aten::bmm", "aten::addmm",
    "aten::native_layer_norm", "aten::nll_loss_forward", "aten::scatter_", "aten::scatter_add_"};

// A new tensor object for the same sizes and flags as `like`.
template <typename... Args>
static Tensor tensor_like(const Tensor& like, Args&&... args) {
  auto t = at::detail::make_tensor<c10::TensorImpl>(std::forward<Args>(args)..., like.dtype());
  t.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  t.unsafeGetTensorImpl()->_set_conj(like.is_conj());
  t.unsafeGetTensorImpl()->_set_neg(like.is_neg());
  return t;
}

// The arguments of one call: tensors of the device and their aliases on the CPU, which share the memory.
struct Call {
  std::string op;
  std::unordered_map<StorageImpl*, Storage> device_storages;  // by CPU storage
  std::vector<std::pair<Tensor, Tensor>> aliases;             // tensor of the device, tensor of the CPU
  std::optional<Device> device;
  bool cpu_scalar = false, cpu_tensor = false;

  Storage to_cpu(const Storage& storage) {
    Storage cpu = cpu_storage(storage);
    device_storages.emplace(cpu.unsafeGetStorageImpl(), storage);
    if (!device) device = storage.device();
    return cpu;
  }

  Tensor to_cpu(const Tensor& t) {
    if (!on_device(t)) {
      if (t.defined() && t.device().is_cpu()) (t.dim() ? cpu_tensor : cpu_scalar) = true;
      return t;
    }
    TORCH_CHECK(!device || *device == t.device(), "Expected all tensors to be on the same device, but found at least ",
                "two devices, ", *device, " and ", t.device(), "! (", op, ")");
    device = t.device();
    for (auto& [original, alias] : aliases)
      if (original.is_same(t)) return alias;
    TORCH_CHECK(t.layout() == c10::kStrided && t.has_storage(), "The simulated device has no layout ", t.layout());
    aliases.emplace_back(t, tensor_like(t, to_cpu(t.storage()), DispatchKeySet(DispatchKey::CPU)));
    return aliases.back().second;
  }

  const Storage& to_device(const Storage& cpu, DeviceIndex index) {
    auto* key = cpu.unsafeGetStorageImpl();
    auto found = device_storages.find(key);
    if (found == device_storages.end()) found = device_storages.emplace(key, device_storage(cpu, index)).first;
    return found->second;
  }

  Tensor to_device(const Tensor& cpu) {
    if (!cpu.defined() || !cpu.device().is_cpu() || !cpu.has_storage()) return cpu;
    for (auto& [original, alias] : aliases)
      if (alias.is_same(cpu)) return original;
    const Storage& storage = to_device(cpu.storage(), device && device->has_index() ? device->index() : current_device);
    // A view has the keys of its base: in inference mode, a view of a normal tensor is a normal tensor.
    for (auto& [original, alias] : aliases)
      if (original.storage().unsafeGetStorageImpl() == storage.unsafeGetStorageImpl())
        return tensor_like(cpu, c10::TensorImpl::VIEW, Storage(storage), original.key_set());
    return tensor_like(cpu, Storage(storage), DispatchKeySet(device_key));
  }

  // After in-place changes of sizes and storages, by resize_ and set_.
  void update_originals() {
    for (auto& [original, alias] : aliases) {
      auto* impl = original.unsafeGetTensorImpl();
      const Storage& storage = to_device(alias.storage(), original.device().index());
      if (storage.unsafeGetStorageImpl() != original.storage().unsafeGetStorageImpl())
        impl->set_storage_keep_dtype(storage);
      auto *own = original.storage().unsafeGetStorageImpl(), *cpu = alias.storage().unsafeGetStorageImpl();
      if (own->data() != cpu->data() || own->nbytes() != cpu->nbytes()) {
        own->set_data_ptr_noswap(device_pointer(alias.storage(), original.device().index()));
        own->set_nbytes(cpu->nbytes());
      }
      impl->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
    }
  }
};

// Replaces one argument by what the operator of the CPU takes. Returns whether a tensor of the CPU would be written to.
static bool convert_argument(Call& call, const c10::Argument& argument, c10::IValue& value) {
  if (value.isTensor()) {
    const Tensor t = value.toTensor();
    value = call.to_cpu(t);
    return t.defined() && t.device().is_cpu() && argument.alias_info() && argument.alias_info()->isWrite();
  }
  if (value.isTensorList()) {
    std::vector<Tensor> tensors = value.toTensorVector();
    for (Tensor& t : tensors) t = call.to_cpu(t);
    value = c10::List<Tensor>(tensors);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> indices = value.toOptionalTensorList().copy();
    for (size_t i = 0; i < indices.size(); i++) {
      std::optional<Tensor> t = indices.get(i);
      if (!t || !t->defined()) continue;
      const bool boolean = t->scalar_type() == at::kBool || t->scalar_type() == at::kByte;
      if (boolean && call.op != "aten::index") report("aten::nonzero", call.op);  // aten::index itself calls nonzero
      if (!boolean && t->device().is_cpu()) report("copy to device", call.op);
      indices.set(i, call.to_cpu(*t));
    }
    value = indices;
  } else if (value.isStorage() && value.toStorage().device().type() == device_type) {
    value = call.to_cpu(value.toStorage());
  } else if (value.isDevice()) {
    TORCH_CHECK(value.toDevice().index() < device_count, "CUDA error: invalid device ordinal");
    if (!call.device) call.device = value.toDevice();
    value = Device(c10::kCPU);
  } else if (value.isGenerator() || (value.isNone() && argument.name() == "generator")) {
    at::Generator generator = value.isNone() ? default_generator(-1) : value.toGenerator();
    TORCH_CHECK(generator.device().type() == device_type, "Expected a '", device_type, "' generator, found another");
    value = static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->cpu;
  } else if (argument.name() == "pin_memory") {
    value = c10::IValue();
  }
  return false;
}

static void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  Call call{schema.name()};
  const size_t begin = stack->size() - schema.arguments().size();
  bool writes_to_cpu = false;
  for (size_t i = begin; i < stack->size(); i++)
    writes_to_cpu |= convert_argument(call, schema.arguments()[i - begin], (*stack)[i]);
  if (!call.aliases.empty()) {
    const bool mixed = call.cpu_tensor || (call.cpu_scalar && WITHOUT_SCALARS.count(call.op));
    TORCH_CHECK(!writes_to_cpu && (!mixed || INDEXING.count(call.op)), "Expected all tensors to be on the same device, ",
                "but found at least two devices, ", *call.device, " and cpu! (", call.op, ")");
  }
  const bool size_known = call.op == "aten::repeat_interleave" && !stack->back().isNone();
  if (SYNCHRONIZING.count(call.op) && !size_known) report(call.op, call.op);
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
  }
  call.update_originals();
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); i++) {
    c10::IValue& value = (*stack)[i];
    std::vector<Tensor> tensors;
    if (value.isTensor()) {
      tensors = {call.to_device(value.toTensor())};
      value = tensors[0];
    } else if (value.isTensorList()) {
      for (const Tensor& t : value.toTensorVector()) tensors.push_back(call.to_device(t));
      value = c10::List<Tensor>(tensors);
    }
    for (const Tensor& t : tensors) check_float64(t, call.op);
  }
}

static Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  if (on_device(self) != on_device(source) && self.numel()) {
    // A non-blocking copy from pageable memory is staged: the CPU waits for the copy, not for earlier kernels.
    if (!non_blocking) report(on_device(self) ? "copy to device" : "copy to CPU", "aten::copy_");
    else if (on_device(self) && !is_pinned(source.storage().data())) report("pageable", "aten::copy_");
  }
  check_float64(self, "aten::copy_");
  Call target{"aten::copy_"}, origin{"aten::copy_"};
  Tensor to = target.to_cpu(self), from = origin.to_cpu(source);
  at::AutoDispatchBelowADInplaceOrView guard;
  auto copy = op.typed<Tensor&(Tensor&, const Tensor&, bool)>();
  copy.redispatch(DispatchKeySet(DispatchKey::CPU), to, from, non_blocking);
  return self;
}

static at::Scalar local_scalar(const Tensor& self) {
  report("item", "aten::_local_scalar_dense");
  Call call{"aten::_local_scalar_dense"};
  at::AutoDispatchBelowADInplaceOrView guard;
  return at::_local_scalar_dense(call.to_cpu(self));
}

// Device guard: the current device. All streams are the default stream.

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return device_type; }
  Device exchangeDevice(Device device) const override {
    Device previous = getDevice();
    setDevice(device);
    return previous;
  }
  Device getDevice() const override { return Device(device_type, current_device); }
  void setDevice(Device device) const override { set_device(device.index()); }
  void uncheckedSetDevice(Device device) const noexcept override {
    current_device = std::max<DeviceIndex>(device.index(), 0);
  }
  c10::Stream getStream(Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, Device(device_type, device.has_index() ? device.index() : current_device));
  }
  c10::Stream getDefaultStream(Device device) const override { return getStream(device); }
  c10::Stream getStreamFromGlobalPool(Device device, bool) const override { return getStream(device); }
  c10::Stream getNewStream(Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  DeviceIndex deviceCount() const noexcept override { return device_count; }
  void record(void**, const c10::Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { report("synchronize", "stream"); }
  void synchronizeEvent(void*) const override { report("synchronize", "event"); }
  void synchronizeDevice(const DeviceIndex) const override { report("synchronize", "device"); }
  double elapsedTime(void*, void*, const DeviceIndex) const override { return 0; }
};
static Guard guard;
static c10::impl::DeviceGuardImplRegistrar guard_registrar(device_type, &guard);

// Hooks, by which PyTorch's device-independent parts find the device

template <typename Interface>
struct Hooks : Interface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  void init() const override {}
  DeviceIndex deviceCount() const override { return device_count; }
  void setCurrentDevice(DeviceIndex index) const override { set_device(index); }
  DeviceIndex getCurrentDevice() const override { return current_device; }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    DeviceIndex previous = current_device;
    set_device(index);
    return previous;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override { return exchangeDevice(index); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  Device getDeviceFromPtr(void*) const override { return Device(device_type, current_device); }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(DeviceIndex index) const override { return new_generator(index); }
};

struct CUDAHooks final : Hooks<at::CUDAHooksInterface> {
  bool hasCUDA() const override { return true; }
  DeviceIndex current_device() const override { return simulated::current_device; }
  c10::Allocator* getCUDADeviceAllocator() const override { return &allocator; }
  int getNumGPUs() const override { return device_count; }
  void deviceSynchronize(DeviceIndex) const override { report("synchronize", "device"); }
};

struct PrivateHooks final : Hooks<at::PrivateUse1HooksInterface> {
  void resizePrivateUse1Bytes(const Storage& storage, size_t size) const override {
    Storage cpu = cpu_storage(storage);
    cpu.unsafeGetStorageImpl()->set_data_ptr_noswap(c10::GetAllocator(c10::kCPU)->allocate(size));
    cpu.set_nbytes(size);
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(device_pointer(cpu, storage.device().index()));
    storage.set_nbytes(size);
  }
};

// Registration when the library is loaded, which is before PyTorch creates its CUDA hooks.

static torch::Library all_operators(torch::Library::IMPL, "_", device_key, __FILE__, __LINE__);
static torch::Library aten_operators(torch::Library::IMPL, "aten", device_key, __FILE__, __LINE__);

static const bool registered = [] {
  all_operators.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
  aten_operators.impl("copy_", &copy_);
  aten_operators.impl("_local_scalar_dense", &local_scalar);
  c10::SetAllocator(device_type, &allocator);
  auto new_hooks = [](at::CUDAHooksArgs) { return std::unique_ptr<at::CUDAHooksInterface>(new CUDAHooks); };
  if (is_cuda)
    at::CUDAHooksRegistry()->Register("CUDAHooks", new_hooks);
  else
    at::RegisterPrivateUse1HooksInterface(new PrivateHooks());
  return true;
}();

static int64_t math_attention(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool,
                              std::optional<double>, bool) {
  return 0;
}
}  // namespace simulated

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  namespace s = simulated;
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&s::math_attention);
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&s::math_attention);
  TORCH_CHECK(!s::is_cuda || at::detail::getCUDAHooks().hasCUDA(), "The library must be loaded before PyTorch.");
  m.def("set_callback", [](py::object function) {
    Py_XDECREF(s::callback);
    s::callback = function.is_none() ? nullptr : function.inc_ref().ptr();
  });
  m.def("bytes", [] { return (int64_t)s::bytes; });
  m.def("peak_bytes", [] { return (int64_t)s::peak_bytes; });
  m.def("reset_peak", [] { s::peak_bytes = (int64_t)s::bytes; });
  m.def("device_count", [] { return (int)s::device_count; });
  m.def("current_device", [] { return (int)s::current_device; });
  m.def("set_device", [](int index) { s::set_device(index); });
  m.def("default_generator", [](int index) { return s::default_generator(index); });
}
