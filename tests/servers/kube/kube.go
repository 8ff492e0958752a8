package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/util/compatibility"
	client "k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/coordination"
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	"k8s.io/kubernetes/pkg/registry/coordination/lease"
)

// kube is the API server and where it listens.
type kube struct {
	server          *server.GenericAPIServer
	plain           net.Listener
	http, https, ca string
}

func newKube(dir string, port, httpsPort int, etcd string) (*kube, error) {
	plain, err := listen(port)
	if err != nil {
		return nil, err
	}
	secure, err := listen(httpsPort)
	if err != nil {
		return nil, err
	}
	certificate, key, err := certificates(dir)
	if err != nil {
		return nil, err
	}
	content, err := dynamiccertificates.NewStaticCertKeyContent("serving", certificate, key)
	if err != nil {
		return nil, err
	}
	kube := &kube{
		plain: plain,
		http:  "http://" + plain.Addr().String(),
		https: "https://" + secure.Addr().String(),
		ca:    filepath.Join(dir, "ca.crt"),
	}
	// ListOptions and the like belong to the group without a name.
	metav1.AddToGroupVersion(legacyscheme.Scheme, schema.GroupVersion{Version: "v1"})
	config := server.NewConfig(legacyscheme.Codecs)
	config.SecureServing = &server.SecureServingInfo{Listener: secure, Cert: content}
	config.LoopbackClientConfig = &client.Config{Host: kube.http}
	config.ExternalAddress = secure.Addr().String()
	config.Authentication.Authenticator = newAuthenticator()
	config.Authorization.Authorizer = newAuthorizer()
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	config.OpenAPIV3Config = server.DefaultOpenAPIV3Config(
		definitions, openapi.NewDefinitionNamer(legacyscheme.Scheme))
	config.RESTOptionsGetter = storage(etcd)
	kube.server, err = config.Complete(nil).New("dibs-kube", server.NewEmptyDelegate())
	if err != nil {
		return nil, err
	}
	kube.server.ShutdownTimeout = time.Second // open watches would delay it by a minute
	return kube, kube.install(config.RESTOptionsGetter)
}

// install adds Kubernetes' own storage of Leases, without its table printer, which would need all other kinds.
func (k *kube) install(options generic.RESTOptionsGetter) error {
	store := &registry.Store{
		NewFunc:                   func() runtime.Object { return &coordination.Lease{} },
		NewListFunc:               func() runtime.Object { return &coordination.LeaseList{} },
		DefaultQualifiedResource:  coordination.Resource("leases"),
		SingularQualifiedResource: coordination.Resource("lease"),
		CreateStrategy:            lease.Strategy,
		UpdateStrategy:            lease.Strategy,
		DeleteStrategy:            lease.Strategy,
		TableConvertor:            rest.NewDefaultTableConvertor(coordination.Resource("leases")),
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: options}); err != nil {
		return err
	}
	group := server.NewDefaultAPIGroupInfo(coordination.GroupName,
		legacyscheme.Scheme, legacyscheme.ParameterCodec, legacyscheme.Codecs)
	group.VersionedResourcesStorageMap["v1"] = map[string]rest.Storage{"leases": store}
	return k.server.InstallAPIGroup(&group)
}

// run serves until the context ends. It calls ready once /readyz succeeds.
func (k *kube) run(ctx context.Context, ready func()) error {
	prepared := k.server.PrepareRun()
	plain := server.DeprecatedInsecureServingInfo{Listener: k.plain}
	if err := plain.Serve(k.server.Handler, time.Second, ctx.Done()); err != nil {
		return err
	}
	go func() {
		for ctx.Err() == nil && !k.isReady() {
			time.Sleep(10 * time.Millisecond)
		}
		if ctx.Err() == nil {
			ready()
		}
	}()
	return prepared.RunWithContext(ctx)
}

func (k *kube) isReady() bool {
	request, err := http.NewRequest(http.MethodGet, k.http+"/readyz", nil)
	if err != nil {
		return false
	}
	request.Header.Set("Authorization", "Bearer admin")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	return response.StatusCode == http.StatusOK
}

func storage(etcd string) generic.RESTOptions {
	codec := legacyscheme.Codecs.LegacyCodec(coordinationv1.SchemeGroupVersion)
	config := storagebackend.NewDefaultConfig("/registry", codec)
	config.Transport.ServerList = []string{etcd}
	return generic.RESTOptions{
		StorageConfig:           config.ForResource(coordination.Resource("leases")),
		Decorator:               registry.StorageWithCacher(),
		DeleteCollectionWorkers: 1,
		EnableGarbageCollection: true,
		ResourcePrefix:          "leases",
	}
}

// certificates returns the certificate and key in dir. It makes them at the first start. Clients trust ca.crt.
func certificates(dir string) (certificate, key []byte, err error) {
	certificate, err = os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err == nil {
		key, err = os.ReadFile(filepath.Join(dir, "server.key"))
	}
	if !os.IsNotExist(err) {
		return certificate, key, err
	}
	certificate, key, err = cert.GenerateSelfSignedCertKey(
		"localhost", []net.IP{net.IPv4(127, 0, 0, 1)}, []string{"localhost"})
	if err != nil {
		return nil, nil, err
	}
	if err = keyutil.WriteKey(filepath.Join(dir, "server.key"), key); err != nil {
		return nil, nil, err
	}
	return certificate, key, cert.WriteCert(filepath.Join(dir, "ca.crt"), certificate)
}

func listen(port int) (net.Listener, error) {
	return net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
}
