// An accelerator without hardware: memory of the processor under a device of its own, "fake". Like a
// GPU it refuses operands that lie elsewhere (but numbers and indices) and generators of another
// device; whatever it is asked for, PyTorch's operations for the processor do.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/extension.h>

#include <cstdlib>
#include <cstring>

namespace {

constexpr auto kFake = c10::DeviceType::PrivateUse1;
constexpr auto kKey = c10::DispatchKey::PrivateUse1;
const c10::Device here(kFake, 0);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = kFake;
  c10::DeviceType type() const override { return kFake; }
  c10::Device exchangeDevice(c10::Device) const override { return here; }
  c10::Device getDevice() const override { return here; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const override { return stream(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, here); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* at = nullptr;
    if (bytes && posix_memalign(&at, 64, bytes)) throw std::bad_alloc();
    return {at, at, &std::free, here};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};
Memory memory;
REGISTER_ALLOCATOR(kFake, &memory);

struct Draws final : at::CPUGeneratorImpl {
  Draws() {
    device_ = here;
    key_set_ = c10::DispatchKeySet(kKey);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static at::Generator common = at::make_generator<Draws>();
    return common;
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<Draws>(); }
  at::Device getDeviceFromPtr(void*) const override { return here; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
};
Hooks hooks;

using Sizes = c10::SymIntArrayRef;
at::IntArrayRef plain(Sizes sizes) { return C10_AS_INTARRAYREF_SLOW(sizes); }

at::Tensor empty(Sizes size, std::optional<at::ScalarType> type, std::optional<at::Layout>, std::optional<at::Device>,
                 std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(plain(size), &memory, c10::DispatchKeySet(kKey), c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(Sizes size, Sizes stride, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(plain(size), plain(stride), &memory, c10::DispatchKeySet(kKey),
                                           c10::dtype_or_default(type));
}

// The same memory as a tensor of the processor.
at::Tensor on_host(const at::Tensor& t) {
  if (t.device().is_cpu()) return t;
  auto storage = t.storage();
  auto host = at::from_blob(t.numel() ? t.data_ptr() : nullptr, t.sizes(), t.strides(), [storage](void*) {},
                            t.options().device(at::kCPU));
  if (t.is_conj()) host = host.conj();
  return t.is_neg() ? host._neg_view() : host;
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  on_host(to).copy_(on_host(from));
  return to;
}

const at::Tensor& resize(const at::Tensor& self, Sizes size, std::optional<at::MemoryFormat>) {
  auto wanted = plain(size);
  if (self.sizes() == wanted) return self;
  size_t bytes = (c10::multiply_integers(wanted) + self.storage_offset()) * self.element_size();
  auto storage = self.storage();
  if (storage.nbytes() < bytes) {
    auto larger = memory.allocate(bytes);
    if (storage.nbytes()) std::memcpy(larger.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(larger));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(wanted);
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Tensor as_strided(const at::Tensor& self, Sizes size, Sizes stride, std::optional<c10::SymInt> offset) {
  auto first = offset ? std::optional<int64_t>(offset->guard_int(__FILE__, __LINE__)) : std::nullopt;
  return at::native::as_strided_tensorimpl(self, plain(size), plain(stride), first);
}

at::Tensor view(const at::Tensor& self, Sizes size) { return at::native::view(self, plain(size)); }

at::Tensor reshape_alias(const at::Tensor& self, Sizes size, Sizes stride) {
  return at::native::_reshape_alias(self, plain(size), plain(stride));
}

at::Tensor unfold(const at::Tensor& self, int64_t dim, int64_t size, int64_t step) {
  return at::native::unfold(self, dim, size, step);
}

at::Tensor view_as_real(const at::Tensor& self) { return at::native::view_as_real(self); }
at::Tensor view_as_complex(const at::Tensor& self) { return at::native::view_as_complex(self); }

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, c10::SymInt offset, Sizes size, Sizes stride) {
  return at::native::set_storage_cpu_(self, storage, offset.guard_int(__FILE__, __LINE__), plain(size), plain(stride));
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage storage) {
  const int64_t count = storage.nbytes() / self.element_size();
  return at::native::set_storage_cpu_(self, storage, 0, {count}, {1});
}

void require_here(const at::Tensor& t, const std::string& name) {
  TORCH_CHECK(!t.defined() || !t.device().is_cpu() || t.dim() == 0, "Expected all tensors to be on the same device, but ",
              name, " got some of fake:0 and some of cpu");
}

void any_operation(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string name = op.schema().name();
  // A GPU takes indices that lie elsewhere.
  const bool indexes = name == "aten::index" || name == "aten::index_put_" || name == "aten::_index_put_impl_";
  std::vector<std::pair<at::Generator, at::Generator>> drawn;
  const size_t count = op.schema().arguments().size();
  for (size_t i = stack->size() - count; i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    if (value.isTensor() && !indexes) {
      require_here(value.toTensor(), name);
    } else if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) require_here(t, name);
    } else if (value.isGenerator() && value.toGenerator().defined()) {
      auto given = value.toGenerator();
      TORCH_CHECK(given.device().type() == kFake, "Expected a 'fake' device type for generator but ", name, " found '",
                  given.device().type(), "'");
      auto host = at::detail::createCPUGenerator();
      host.set_state(given.get_state());
      drawn.emplace_back(given, host);
      value = c10::IValue(host);
    }
  }
  at::native::cpu_fallback(op, stack, false, c10::DispatchKey::CPU);
  for (auto& [given, host] : drawn) given.set_state(host.get_state());
}

using Ints = at::IntArrayRef;
at::Tensor convolution(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& b, Ints stride,
                       Ints padding, Ints dilation, bool transposed, Ints more, int64_t groups) {
  for (const auto& t : {x, w, b.value_or(at::Tensor())}) require_here(t, "convolution");
  auto bias = b && b->defined() ? std::optional<at::Tensor>(on_host(*b)) : std::nullopt;
  return at::convolution(on_host(x), on_host(w), bias, stride, padding, dilation, transposed, more, groups).to(here);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad, const at::Tensor& x, const at::Tensor& w, Ints stride, Ints padding, Ints dilation,
    bool transposed, Ints more, int64_t groups, std::array<bool, 3> wanted) {
  const std::vector<int64_t> bias{w.size(0)};
  auto [a, b, c] = at::convolution_backward(on_host(grad), on_host(x), on_host(w), at::OptionalIntArrayRef(bias), stride,
                                            padding, dilation, transposed, more, groups, wanted);
  auto back = [](const at::Tensor& t) { return t.defined() ? t.to(here) : t; };
  return {back(a), back(b), back(c)};
}

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&any_operation>()); }
// What these two keys stand for is in what `copy_from` reads.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("resize_", resize);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("unfold", unfold);
  m.impl("view_as_real", view_as_real);
  m.impl("view_as_complex", view_as_complex);
  m.impl("set_.source_Storage", set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("native_group_norm", torch::CppFunction::makeFromBoxedFunction<&any_operation>());
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("begin", [] { at::RegisterPrivateUse1HooksInterface(&hooks); });
}
