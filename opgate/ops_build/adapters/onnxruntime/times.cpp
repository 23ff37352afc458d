// What the gateway calls to learn how long the ops of a session take. See op_call/op_times.h.
#include "op_call/op_times.h"

#define OPGATE_TIMES_EXPORT extern "C" __attribute__((visibility("default")))

/// States to whom the nodes of the sessions belong that the calling thread makes from now on.
OPGATE_TIMES_EXPORT void opgate_state_owner(const char* owner) { opgate::state_owner(owner); }

/// Forgets the times of an owner.
OPGATE_TIMES_EXPORT void opgate_forget_owner(const char* owner) { opgate::forget_owner(owner); }

/// Writes the times of an owner as `write_times` does. Returns the bytes that all of them take.
OPGATE_TIMES_EXPORT std::int64_t opgate_op_times(const char* owner, char* memory, std::int64_t size) {
  return static_cast<std::int64_t>(opgate::write_times(owner, {memory, static_cast<std::size_t>(size)}));
}

/// Lets the calls on this thread be recorded from now on, or no more.
OPGATE_TIMES_EXPORT void opgate_record_calls(int on) { opgate::record_calls(on != 0); }

/// The calls that this thread has recorded since it asked last, as JSON. The text is valid until it asks again.
OPGATE_TIMES_EXPORT const char* opgate_recorded_calls() {
  static thread_local std::string text;
  text = opgate::recorded_calls();
  return text.c_str();
}
