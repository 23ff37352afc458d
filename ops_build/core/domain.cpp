// The one source of the core that depends on what is built. A compiler cache can share the objects of the others
// between builds.
namespace opgate {

extern const char* const library_domain;
const char* const library_domain = OPGATE_DOMAIN;

}  // namespace opgate
