#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulation {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackSize = 256 << 10;
#else
constexpr size_t kStackSize = 64 << 10;
#endif
constexpr size_t kGuardSize = 64 << 10;  // a multiple of any page size

// Stacks are whole pages apart, so without this the live ends of all of them would compete for the
// same few sets of the cache.
constexpr size_t kColors = 16;
constexpr size_t kColorSize = 256;

Fiber* switched_from = nullptr;

}  // namespace

// Saves the callee-saved registers on the running stack and its end in *from, continues on to.
#if !defined(__x86_64__)

// The stack's "end" is then a ucontext_t that lives elsewhere.
void emulation_switch_stacks(void** from, void* to) {
  ucontext_t here;
  *from = &here;
  swapcontext(&here, static_cast<ucontext_t*>(to));
}

#else

extern "C" void emulation_switch_stacks(void** from, void* to)
    __attribute__((visibility("hidden")));

asm(R"(
  .text
  .globl emulation_switch_stacks
  .hidden emulation_switch_stacks
  .type emulation_switch_stacks, @function
emulation_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmpq *%rcx
  .size emulation_switch_stacks, . - emulation_switch_stacks
)");
constexpr size_t kSavedRegisters = 6;
constexpr size_t kFrameSize = 8 * sizeof(void*);  // also the address to continue at, and a 0 caller
#endif

Fiber::Fiber(void (*body)(), unsigned number) {
  mapping_ = mmap(nullptr, kGuardSize + kStackSize, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) throw std::bad_alloc();
  mprotect(mapping_, kGuardSize, PROT_NONE);
  char* bottom = static_cast<char*>(mapping_) + kGuardSize;
  stack_bottom_ = bottom;
  stack_size_ = kStackSize;
  const size_t usable = kStackSize - (number % kColors) * kColorSize;
#if !defined(__x86_64__)
  const size_t context_size = (sizeof(ucontext_t) + 63) & ~size_t{63};
  auto* context = new (bottom + usable - context_size) ucontext_t;
  getcontext(context);
  context->uc_stack.ss_sp = bottom;
  context->uc_stack.ss_size = usable - context_size;
  context->uc_link = nullptr;
  makecontext(context, body, 0);
  stack_pointer_ = context;
#else
  char* frame = bottom + usable - kFrameSize;
  std::memset(frame, 0, kFrameSize);
  std::memcpy(frame + kSavedRegisters * sizeof(void*), &body, sizeof(void*));
  stack_pointer_ = frame;
#endif
}

Fiber::~Fiber() {
  if (mapping_ != nullptr) munmap(mapping_, kGuardSize + kStackSize);
}

void Fiber::switch_stacks(Fiber& from, Fiber& to) {
  switched_from = &from;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from.fake_stack_, to.stack_bottom_, to.stack_size_);
  emulation_switch_stacks(&from.stack_pointer_, to.stack_pointer_);
  __sanitizer_finish_switch_fiber(from.fake_stack_, &switched_from->stack_bottom_,
                                  &switched_from->stack_size_);
#else
  emulation_switch_stacks(&from.stack_pointer_, to.stack_pointer_);
#endif
}

void Fiber::entered() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &switched_from->stack_bottom_,
                                  &switched_from->stack_size_);
#endif
}

}  // namespace emulation
