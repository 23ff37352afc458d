// What the options of a build decide. A compiler cache can share the objects of the core's other sources between
// builds.
namespace opgate {

extern const char* const library_domain;
extern const char* const compiled_level;

const char* const library_domain = OPGATE_DOMAIN;
#if defined __AVX512BW__
const char* const compiled_level = "x86-64-v4";
#elif defined __AVX2__
const char* const compiled_level = "x86-64-v3";
#else
const char* const compiled_level = "baseline";
#endif

}  // namespace opgate
